"""Figures in words and units, the same on the terminal and on the page."""

from __future__ import annotations

from fused_mlp.service.ab.ratio import Ratio
from fused_mlp.service.ab.report import Difference, Unit, say_interval, say_ratio


def value_text(value: float | None, unit: Unit) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f} req/s" if unit == "req/s" else seconds_text(value)


def seconds_text(seconds: float) -> str:
    """Three digits that mean something: 4.21 us, 812 us, 1.73 ms, 2.5 s."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        scaled = seconds * factor
        if scaled < 999.5:
            return f"{scaled:.3g} {unit}" if scaled < 99.5 else f"{scaled:.0f} {unit}"
    return f"{seconds:.3g} s"


def ratio_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    noise = ", noise" if ratio.is_noise else ""
    return f"{say_ratio(ratio.value)} ({say_interval(ratio)}{noise})"


def difference_text(difference: Difference | None) -> str:
    if difference is None:
        return "Largest output difference: not known (the shadow compares outputs; it recorded none)"
    relative = (
        "" if difference.relative is None else f", {difference.relative:.2g} of the row's largest output"
    )
    return (
        f"Largest output difference on the same {difference.rows:,} rows: {difference.absolute:.2g}{relative}"
    )
