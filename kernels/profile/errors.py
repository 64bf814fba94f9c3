# SPDX-License-Identifier: Apache-2.0
"""Errors of this package."""


class ProfileError(Exception):
    """The request cannot be profiled. The text is one line: what was expected, what was given."""
