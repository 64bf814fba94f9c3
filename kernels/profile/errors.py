"""Errors of this package."""


class ProfileError(Exception):
    """What was asked for cannot be profiled. One line: what was expected, what came."""
