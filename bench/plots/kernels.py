# SPDX-License-Identifier: Apache-2.0
"""Speed of the engines relative to eager PyTorch by batch size, one panel per model."""

from __future__ import annotations

from matplotlib.figure import Figure

from bench.docs.registry import Results
from bench.plots.theme import Theme, log_ticks

SHAPES = (
    "64-128-128-10 relu", "784-512-256-10 relu", "256-1024-1024-256 gelu",
    "GeGLU 768-3072-768", "pre-LN tower 256x4", "tabular ResNet 192x4",
)  # fmt: skip
COLOURS = {
    "OpenVINO": "grey", "torch.compile": "compile", "ONNX Runtime": "teal", "limit": "ink", "fused": "fused",
}  # fmt: skip
TITLES = {"limit": "limit of the machine", "fused": "fused-mlp"}
COLUMNS = 3
MARKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32)


def draw(results: Results, theme: Theme) -> Figure:
    result = results["kernels"]
    threads = min(cell["threads"] for cell in result["cells"])
    cells = [c for c in result["cells"] if c["threads"] == threads and "eager" in c["best_us"]]
    shapes = [shape for shape in SHAPES if any(c["shape"] == shape for c in cells)]
    names = [name for name in COLOURS if name == "limit" or name in result["engines"]]
    rows = -(-len(shapes) // COLUMNS)
    figure = theme.figure(0.8 + 2 * rows, "Speed of one forward pass, eager PyTorch = 1x (one thread)")
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    most = max(8.0, *(c["best_us"]["eager"] / c["limit_us"] for c in cells if c["shape"] in shapes))
    for shape, axes in zip(shapes, panels, strict=False):
        points = [c for c in cells if c["shape"] == shape]
        eager = [c["best_us"]["eager"] for c in points]
        axes.axhline(1, color=theme["unfused"], linewidth=0.8)
        for name in names:
            us = [c["limit_us"] if name == "limit" else c["best_us"][name] for c in points]
            axes.plot(
                [c["batch"] for c in points],
                [max(one / other, MARKS[0]) for one, other in zip(eager, us, strict=True)],
                color=theme[COLOURS[name]],
                linewidth=2.2 if name == "fused" else 0.9 if name == "limit" else 1.2,
                linestyle=(0, (2.5, 2.5)) if name == "limit" else "solid",
                label=TITLES.get(name, name),
            )
        axes.set_title(shape)
        first = points[0]
        said = f"{first['best_us']['eager'] / first['best_us']['fused']:.1f}x at batch {first['batch']}"
        axes.annotate(
            said, (0.99, 0.9), xycoords="axes fraction", ha="right", color=theme["fused"], weight="bold"
        )
        log_ticks(axes, "x", [batch for batch in (1, 8, 64, 512) if batch <= points[-1]["batch"]], "{}")
        axes.grid(visible=False, axis="x")
        log_ticks(axes, "y", [mark for mark in MARKS if mark <= most], "{:g}x")
        axes.set_ylim(MARKS[0] * 0.95, most * 1.1)
    for axes in panels:
        axes.set_visible(False)
    figure.axes[-2 if len(shapes) == rows * COLUMNS else (rows - 1) * COLUMNS].set_xlabel("rows in a batch")
    lines, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines[::-1], labels[::-1], loc="outside lower center", ncols=len(labels))
    return figure
