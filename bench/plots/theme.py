# SPDX-License-Identifier: Apache-2.0
"""The look of the plots, light and dark, and what several of them need: a figure as SVG, labels that do not overlap.
Knows no data."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator

from fused_mlp.service.reports.style import COLOURS

# Beside the colours of the reports: one for each engine and server that is not ours, (light, dark).
OTHERS = {
    "teal": ("#0f766e", "#5ec4b6"),
    "olive": ("#6b6f12", "#c9cc5f"),
    "rose": ("#b0305f", "#f58fb3"),
    "grey": ("#7b848e", "#8d97a2"),
}
_MORE_DIGITS = re.compile(r"(\.\d\d)\d+")
INCHES = 7.5  # the width of a page, 720 px


class Theme:
    """Colours by name. `settings` are matplotlib's while a figure is made and saved."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: dict[str, Any] = {
            # Text stays text. The bundled font measures it on every machine; the reader's fonts are narrower.
            "svg.fonttype": "none",
            "svg.hashsalt": "fused-mlp",
            "font.sans-serif": ["DejaVu Sans", "Arial"],
            "font.size": 8.25,  # 11 px
            "axes.facecolor": "none",
            "axes.titlesize": 9,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.titlecolor": self["ink"],
            "axes.labelcolor": self["soft"],
            "axes.edgecolor": self["line"],
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": self["line"],
            "grid.linewidth": 0.7,
            "xtick.color": self["soft"],
            "ytick.color": self["soft"],
            "xtick.bottom": False,
            "ytick.left": False,
            "text.color": self["soft"],
            "legend.frameon": False,
            "legend.fontsize": 9,
            "legend.labelcolor": "linecolor",
            "lines.linewidth": 1.4,
            "lines.solid_joinstyle": "round",
            "savefig.facecolor": "none",
        }

    def __getitem__(self, colour: str) -> str:
        if colour in OTHERS:
            return OTHERS[colour][self.name == "dark"]
        found: str = getattr(COLOURS[colour], self.name)
        return found

    def figure(self, height: float, title: str) -> Figure:
        """`height` in inches."""
        figure = Figure(
            figsize=(INCHES, height), layout=ConstrainedLayoutEngine(w_pad=0.08), facecolor="none"
        )
        figure.suptitle(title, x=0.005, ha="left", fontsize=10.5, fontweight="bold", color=self["ink"])
        return figure


def as_svg(figure: Figure, title: str) -> str:
    written = io.StringIO()
    unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(written, format="svg", metadata={"Title": title, **unsaid})
    # Two digits of a coordinate are enough; the others take a third of the file and can differ between CPUs.
    lines = (
        line.rstrip() if "<text" in line else _MORE_DIGITS.sub(r"\1", line.rstrip())
        for line in written.getvalue().splitlines()
    )
    # A path has one line, not one for each of its points.
    return re.sub(r'\n(?=[A-Za-z"])', " ", "\n".join(lines)) + "\n"


def log_ticks(axes: Axes, which: str, marks: Sequence[float], form: str) -> None:
    """Makes the x or y axis logarithmic, with these marks alone."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(marks, [form.format(mark) for mark in marks])
    axis.set_minor_locator(NullLocator())


def spread(places: Sequence[float], apart: float) -> list[float]:
    """The places of labels, in the same order, moved so that each is `apart` from the next."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + apart)
    shift = sum(new - old for new, old in zip(moved, places, strict=True)) / max(len(places), 1)
    return [place - shift for place in moved]


def shares_of_height(axes: Axes, values: Sequence[float]) -> list[float]:
    """Where values are on a logarithmic y axis: 0 at its bottom, 1 at its top."""
    bottom, top = np.log(axes.get_ylim())
    return [float((np.log(value) - bottom) / (top - bottom)) for value in values]
