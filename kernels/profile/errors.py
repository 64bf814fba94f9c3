"""Errors of this package."""


class ProfileError(Exception):
    """The request cannot be profiled. The text is one line: what was expected, what was given."""
