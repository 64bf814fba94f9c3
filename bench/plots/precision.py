# SPDX-License-Identifier: Apache-2.0
"""Error against speed by precision: the geometric mean of the models, for each engine."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from matplotlib.figure import Figure

from bench.docs.registry import Results
from bench.kernels.report import geometric_mean
from bench.plots.theme import Theme, log_ticks, shares_of_height, spread

EXACT = "fused"
ENGINES = {
    EXACT: ("float32", "ink"),
    "fused bf16": ("our bfloat16", "compile"),
    "fused int8": ("our int8", "fused"),
    "ONNX Runtime int8": ("ONNX Runtime", "teal"),
    "OpenVINO int8": ("OpenVINO", "grey"),
    "torch int8 fbgemm": ("PyTorch", "unfused"),
}
BATCHES = (1, 64)
ERRORS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SPEEDS = (0.03, 0.1, 0.3, 0.5, 1, 2, 4, 8)


def draw(results: Results, theme: Theme) -> Figure:
    speed, errors = results["kernels-int8"], results["precision-errors"]
    error = {(c["shape"], name): e["largest"] for c in errors["cells"] for name, e in c["errors"].items()}
    threads = min(c["threads"] for c in speed["cells"])
    batches = [b for b in BATCHES if any(c["batch"] == b for c in speed["cells"])]
    means = {batch: _means(speed["cells"], error, threads, batch) for batch in batches}
    exact = max(e for name, _, e in means[batches[0]] if name == EXACT)
    of_float32 = f"{Decimal(f'{100 * exact:.1g}'):f} %"
    figure = theme.figure(4.4, "Error against speed by precision: right is faster, up is more exact")
    figure.supxlabel(
        "Geometric means over the models, one thread. The other engines are in int8. Error: the largest of an "
        f"output,\nas a share of its row's largest (float32: {of_float32}).",
        fontsize=8.25,
        x=0.005,
        ha="left",
    )
    shown = [point for each in means.values() for point in each if point[0] != EXACT]
    low, high = min(0.5, *(s for _, s, _ in shown)) * 0.9, max(2.0, *(s for _, s, _ in shown)) * 1.1
    least, most = min(e for *_, e in shown) * 0.6, max(e for *_, e in shown) * 1.8
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    for axes, batch in zip(panels, batches, strict=True):
        axes.set_title(f"batch {batch}")
        log_ticks(axes, "x", [mark for mark in SPEEDS if low <= mark <= high], "{:g}x")
        log_ticks(axes, "y", [mark for mark in ERRORS if least <= mark <= most], "{}")
        axes.yaxis.set_major_formatter(lambda mark, _: f"{100 * mark:g} %")
        axes.set(xlim=(low, high), ylim=(most, least), xlabel="speed, our float32 = 1x")
        reduced = [point for point in means[batch] if point[0] != EXACT]
        places = spread(shares_of_height(axes, [e for *_, e in reduced]), 0.075)
        for (name, s, e), place in zip(reduced, places, strict=True):
            title, colour = ENGINES[name]
            ours = name.startswith("fused")
            axes.plot(s, e, "o", color=theme[colour], markersize=9 if ours else 6.5)
            axes.annotate(
                f"{title} {s:.1f}x",
                (s, e),
                (1.04, place),
                textcoords="axes fraction",
                va="center",
                color=theme[colour],
                weight="bold" if ours else "normal",
                arrowprops={
                    "arrowstyle": "-",
                    "linestyle": (0, (2, 2)),
                    "color": theme[colour],
                    "linewidth": 0.8,
                },
            )
    return figure


def _means(
    cells: list[dict[str, Any]], error: dict[tuple[str, str], float], threads: int, batch: int
) -> list[tuple[str, float, float]]:
    """Engine, speed and error, of the models that have both."""
    found = []
    for name in ENGINES:
        own = [
            (c["best_us"]["fused"] / c["best_us"][name], error[c["shape"], name])
            for c in cells
            if (c["threads"], c["batch"]) == (threads, batch)
            and name in c["best_us"]
            and (c["shape"], name) in error
        ]
        if own:
            found.append((name, geometric_mean([s for s, _ in own]), geometric_mean([e for _, e in own])))
    return found
