# SPDX-License-Identifier: Apache-2.0
"""Goodput against offered load, one panel for each deadline."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench.docs.registry import Results
from bench.plots.theme import Theme, log_ticks

COLOURS = ("fused", "teal", "olive", "rose")
TITLES = {"mosec and torch (HTTP)": "mosec", "Triton, Python backend, torch": "Triton, Python backend"}


def draw(results: Results, theme: Theme) -> Figure:
    result = results["overload"]
    deadlines = result["deadlines_ms"]
    figure = theme.figure(3.0, "Answers within the deadline, as a share of capacity (higher is better)")
    panels = figure.subplots(1, len(deadlines), sharey=True, squeeze=False)[0]
    most = 1.05 * max(1, *(run["goodput"] for found in result["systems"].values() for run in found["runs"]))
    for axes, deadline in zip(panels, deadlines, strict=True):
        for (name, found), colour in zip(result["systems"].items(), COLOURS, strict=False):
            runs = [run for run in found["runs"] if run["deadline_ms"] == deadline]
            ours = colour == "fused"
            axes.plot(
                [run["load"] for run in runs],
                [run["goodput"] for run in runs],
                color=theme[colour],
                marker="o",
                markersize=3.5,
                linewidth=2.2 if ours else 1.4,
                zorder=3 if ours else 2,
                label=TITLES.get(name, name.partition(",")[0]),
            )
        axes.set_title(f"deadlines of {deadline} ms")
        log_ticks(axes, "x", (0.5, 1.2, 3, 10), "{:g}x")
        axes.grid(visible=False, axis="x")
        axes.set_ylim(0, most)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    panels[len(panels) // 2].set_xlabel("offered load, in multiples of each system's capacity")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
    return figure
