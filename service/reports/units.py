# SPDX-License-Identifier: Apache-2.0
"""Times in words and units."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """Three significant digits: 4.21 us, 812 us, 1.73 ms, 2.5 s."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        scaled = seconds * factor
        if scaled < 999.5:
            return f"{scaled:.3g} {unit}" if scaled < 99.5 else f"{scaled:.0f} {unit}"
    return f"{seconds:.3g} s"
