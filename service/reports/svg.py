# SPDX-License-Identifier: Apache-2.0
"""Drawings as SVG text: a few elements, and axes with round ticks. Colours and strokes come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from fused_mlp.service.reports.style import style_sheet

# A plot in one of two columns of a page. On a phone its text is still 9 pixels high.
WIDTH, HEIGHT = 480.0, 260.0
_MANTISSAS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))


def drawing(width: float, height: float, body: str, title: str, alone: bool = False) -> str:
    """`alone`: a separate file, with its own style and background."""
    head = f"<style>{style_sheet()}</style><rect width='100%' height='100%' fill='var(--paper)'/>"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' role='img' "
        f"aria-label='{escape(title)}'>{head if alone else ''}{body}</svg>"
    )


def rectangle(  # noqa: PLR0917 - x, y, width, height are one thing
    x: float, y: float, width: float, height: float, colour: str, tip: str = "", opacity: float = 1
) -> str:
    """`colour` is a name of the style."""
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(width, 0.3):.2f}' height='{height:.2f}' rx='2' "
        f"fill='var(--{colour})' opacity='{opacity:.2f}'>{_tip(tip)}</rect>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """`kind`: classes of the style, such as `ink` or `name fused`."""
    return f"<text class='{kind}' x='{x:.2f}' y='{y:.2f}' text-anchor='{anchor}'>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f"<line class='{kind}' x1='{x1:.2f}' y1='{y1:.2f}' x2='{x2:.2f}' y2='{y2:.2f}'/>"


def curve(variant: str, points: Iterable[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline class='line {variant}' points='{path}'/>"


def dot(x: float, y: float, kind: str, tip: str = "") -> str:
    return f"<circle class='dot {kind}' cx='{x:.1f}' cy='{y:.1f}' r='3.5'>{_tip(tip)}</circle>"


def _tip(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        scaled = [math.log(v) if self.log else v for v in (self.low, self.high, value)]
        span = scaled[1] - scaled[0]
        share = (scaled[2] - scaled[0]) / span if span else 0.5
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.high, self.low)


def grid(x: Axis, y: Axis, x_label: Callable[[float], str], y_label: Callable[[float], str]) -> str:
    """Lines at the ticks of both axes, labelled below and on the left."""
    return columns(x, x.ticks(), y, x_label) + rows(y, y.ticks(), x, y_label)


def columns(x: Axis, ticks: Sequence[float], y: Axis, label: Callable[[float], str]) -> str:
    return "".join(
        line(x(tick), y.start, x(tick), y.end) + text(x(tick), y.start + 17, label(tick), "middle")
        for tick in ticks
    )


def rows(y: Axis, ticks: Sequence[float], x: Axis, label: Callable[[float], str]) -> str:
    return "".join(
        line(x.start, y(tick), x.end, y(tick)) + text(x.start - 8, y(tick) + 4, label(tick), "end")
        for tick in ticks
    )


def linear_ticks(high: float, low: float = 0.0) -> list[float]:
    """About five round numbers."""
    span = high - low
    magnitude = 10.0 ** math.floor(math.log10(span / 4))
    step = next(step for step in (1, 2, 2.5, 5, 10) if step * magnitude >= span / 5) * magnitude
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers where the range has them; equal steps in a range of less than a factor of two."""
    if high < 2 * low:
        return linear_ticks(high, low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for mantissas in _MANTISSAS:
        found = [t for d in decades for m in mantissas if low <= (t := m * 10.0**d) <= high]
        if len(found) <= most:
            break
    return found
