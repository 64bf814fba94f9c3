# SPDX-License-Identifier: Apache-2.0
"""Times as people write them on a command line."""

from __future__ import annotations

import re

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float:
    """'5m' -> 300. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip(), re.ASCII)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"expected a time such as 30s, 5m or 2h, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def seconds_of_option(option: str, text: str) -> float:
    """The same for the value of an option: what cannot be read is a mistake on the command line."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
