# SPDX-License-Identifier: Apache-2.0
"""Figures in words and units, the same on the terminal and on the page."""

from __future__ import annotations

from fused_mlp.service.ab.bootstrap import Ratio
from fused_mlp.service.ab.report import Difference, Unit, say_interval, say_ratio
from fused_mlp.service.reports.units import seconds_text


def value_text(value: float | None, unit: Unit) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f} req/s" if unit == "req/s" else seconds_text(value)


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
    text = (
        f"Largest output difference on the same {difference.rows:,} rows: {difference.absolute:.2g}{relative}"
    )
    if difference.quantiles is not None:
        text += f"; of the rows, {', '.join(f'{n} {v:.2g}' for n, v in difference.quantiles.items())}"
    if difference.top1_changed is not None:
        share = difference.top1_changed / difference.rows
        text += f"; another largest output for {difference.top1_changed:,} rows, {share:.2%}"
    return text
