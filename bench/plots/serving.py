# SPDX-License-Identifier: Apache-2.0
"""Requests per second by system, and the latency percentiles of each."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from bench.docs.figures.serving import (
    BASELINE,
    FUSED,
    GRPC_ECHO,
    MODEL_TITLES,
    OWN_ECHO,
    PYTHON_FRONT,
    UNFUSED,
    cell,
)
from bench.docs.registry import Result, Results
from bench.plots.theme import Theme, log_ticks, shares_of_height, spread

MOSEC, TRITON = "mosec and torch (HTTP)", "Triton, Python backend, torch"
SYSTEMS = {
    FUSED: ("fused-mlp, fused", "fused"),
    UNFUSED: ("fused-mlp, unfused", "unfused"),
    PYTHON_FRONT: ("fused-mlp, Python front", "compile"),
    MOSEC: ("mosec, PyTorch (HTTP)", "teal"),
    TRITON: ("Triton, PyTorch", "olive"),
    BASELINE: ("grpc.aio, PyTorch", "rose"),
    GRPC_ECHO: ("gRPC C++ echo, no model", "grey"),
    OWN_ECHO: ("our echo, no model", "grey"),
}
OUTSTANDING = 128


def draw_rates(results: Results, theme: Theme) -> Figure:
    result = results["serving"]
    models = list(result["models"])
    # Not our echo: it is so much faster than all others that it would hide how they differ.
    names = [name for name in SYSTEMS if name in result["models"][models[0]] and name != OWN_ECHO]
    title = f"Requests per second, one row each, {OUTSTANDING} outstanding (higher is better)"
    figure = theme.figure(0.75 + 0.26 * len(names), title)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        rates = [cell(result, model, name, OUTSTANDING, "rate") for name in names]
        bars = axes.barh(range(len(names)), rates, 0.7, color=[theme[SYSTEMS[name][1]] for name in names])
        labels = axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, fontsize=9)
        labels[names.index(FUSED)].set(color=theme["ink"], weight="bold")
        axes.set_title(MODEL_TITLES[model])
        axes.set_xlim(0, 1.02 * max(rates))
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    panels[0].invert_yaxis()
    panels[0].set_yticks(range(len(names)), [SYSTEMS[name][0] for name in names], fontsize=9)
    panels[0].get_yticklabels()[names.index(FUSED)].set(color=theme["ink"], weight="bold")
    return figure


def _quantiles(result: Result, model: str, name: str, outstanding: int) -> dict[float, float]:
    found = result["models"][model][name][str(outstanding)]["latency_ms"]
    return {float(q): ms for q, ms in found.items() if float(q) >= 50}


def _tail(q: float) -> float:
    return 100 / (100 - q)


def draw_latencies(results: Results, theme: Theme) -> Figure:
    """The tail is stretched: each tenth of the requests that are left takes as much room as the nine before it."""
    result = results["serving"]
    outstanding = sorted(result["loads"])[len(result["loads"]) // 2]
    model = next(iter(result["models"]))
    names = [
        name for name in SYSTEMS if name in result["models"][model] and name not in (GRPC_ECHO, OWN_ECHO)
    ]
    found = {name: _quantiles(result, model, name, outstanding) for name in names}
    marks = [q for q in (50, 75, 90, 99, 99.9) if q in next(iter(found.values()))]
    title = f"Latency of {MODEL_TITLES[model]}, {outstanding} outstanding (lower is better)"
    figure = theme.figure(3.6, title)
    axes = figure.subplots()
    for name in names:
        ours = name == FUSED
        axes.plot(
            [_tail(q) for q in found[name]],
            list(found[name].values()),
            color=theme[SYSTEMS[name][1]],
            marker="o",
            markersize=3.5,
            linewidth=2.2 if ours else 1.4,
            zorder=3 if ours else 2,
        )
    values = [value for each in found.values() for value in each.values()]
    low, high = min(values) * 0.8, max(values) * 1.2
    each = [mark for power in range(-2, 4) for mark in (10.0**power, 3 * 10.0**power) if low <= mark <= high]
    log_ticks(axes, "y", each, "{:g} ms")
    log_ticks(axes, "x", [_tail(q) for q in marks], "")
    axes.set_xticklabels([f"p{q:g}" for q in marks])
    axes.set(xlim=(_tail(marks[0]) * 0.95, _tail(marks[-1]) * 1.03), ylim=(low, high))
    axes.set_xlabel("share of requests that are at least as fast")
    axes.grid(visible=False, axis="x")
    lasts = [found[name][marks[-1]] for name in names]
    for name, last, place in zip(names, lasts, spread(shares_of_height(axes, lasts), 0.065), strict=True):
        label, colour = SYSTEMS[name]
        digits = max(0, 2 - math.floor(math.log10(last))) if last < 100 else 0
        axes.annotate(
            f"{label} {last:.{min(digits, 2)}f} ms",
            (1.02, place),
            xycoords="axes fraction",
            va="center",
            color=theme[colour],
            fontsize=9,
            weight="bold" if name == FUSED else "normal",
        )
    return figure
