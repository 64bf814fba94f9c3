# SPDX-License-Identifier: Apache-2.0
"""A small drawing in SVG: lines, boxes, dots and text in the colours of a theme. Knows no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from fused_mlp.service.reports.style import COLOURS

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
# Beside the colours of the reports: one for each engine and server that is not ours, (light, dark).
OTHERS = {
    "teal": ("#0f766e", "#5ec4b6"),
    "olive": ("#6b6f12", "#c9cc5f"),
    "rose": ("#b0305f", "#f58fb3"),
    "grey": ("#7b848e", "#8d97a2"),
}
Scale = Callable[[float], float]


class Drawing:
    def __init__(self, width: int, height: int, theme: str, title: str) -> None:
        self.width, self.height, self.theme = width, height, theme
        self._title = title
        self._parts: list[str] = []

    def colour(self, name: str) -> str:
        if name in OTHERS:
            return OTHERS[name][self.theme == "dark"]
        found: str = getattr(COLOURS[name], self.theme)
        return found

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "soft",
        size: float = 11,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{self.colour(colour)}" font-size="{size:g}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.5, dashes: str = ""
    ) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self.colour(colour)}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{dashed}/>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" rx="2" '
            f'fill="{self.colour(colour)}"/>'
        )

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{self.colour(colour)}"/>')

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{FONT}">'
        )
        return "\n".join([head, f"<title>{escape(self._title)}</title>", *self._parts, "</svg>\n"])


def log_scale(low: float, high: float, first: float, last: float) -> Scale:
    """From [low, high] to [first, last]."""
    start, length = math.log(low), math.log(high / low)
    return lambda value: first + (last - first) * (math.log(value) - start) / length


def spread(places: Sequence[float], apart: float) -> list[float]:
    """The places of labels, in the same order, moved so that each is `apart` from the next."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + apart)
    shift = sum(new - old for new, old in zip(moved, places, strict=True)) / max(len(places), 1)
    return [place - shift for place in moved]
