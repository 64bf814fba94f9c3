# SPDX-License-Identifier: Apache-2.0
"""What the kernel benchmark found, for people: a table on the terminal, one for the README, a plot, and how
the results stand against the targets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fused_mlp.service.reports.style import COLOURS

MARKDOWN_BATCHES = (1, 8, 128)
# Gains below this are noise on a shared machine.
NOISE = 0.03
BESIDE_US = 100  # below, a wake-up decides


def _peers(cell: dict[str, Any]) -> dict[str, float]:
    return {name: us for name, us in cell["best_us"].items() if name != "fused"}


def _ratio(cell: dict[str, Any]) -> float:
    """How many times as long as fused the best of the others takes."""
    return min(_peers(cell).values()) / cell["best_us"]["fused"]


def _median_ratio(cell: dict[str, Any]) -> float:
    others = [us for name, us in cell["median_us"].items() if name != "fused"]
    return min(others) / cell["median_us"]["fused"]


def _share(cell: dict[str, Any]) -> float:
    """Of the machine's limit."""
    return cell["limit_us"] / cell["best_us"]["fused"]


def _norms_cost(cell: dict[str, Any]) -> float:
    """Of norms and additions, as a share of the time without them."""
    return cell["best_us"]["fused"] / cell["without_norms_us"] - 1


def number(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def show(console: Console, result: dict[str, Any]) -> None:
    engines = result["engines"]
    table = Table(title="microseconds per call, best (median)", title_justify="left")
    for name in ("threads", "shape", "batch"):
        table.add_column(name, justify="left" if name == "shape" else "right")
    for name in engines:
        table.add_column(name, justify="right")
    by = ", medians" if result.get("beside") else ""
    table.add_column(f"vs best other{by}", justify="right")
    table.add_column("of limit", justify="right")
    shape = None
    for cell in result["cells"]:
        if shape not in (None, cell["shape"]):
            table.add_section()
        shape = cell["shape"]
        times = [f"{number(cell['best_us'][e])} ({number(cell['median_us'][e])})" for e in engines]
        ratio = _median_ratio(cell) if result.get("beside") else _ratio(cell)
        colour = "green" if ratio >= 1 else "yellow" if ratio >= 1 - NOISE else "red"
        share = f"{_share(cell):.0%} {'fma' if cell['limited_by'] == 'compute' else 'read'}"
        table.add_row(
            str(cell["threads"]),
            escape(shape),
            str(cell["batch"]),
            *times,
            f"[{colour}]{ratio:.2f}x[/]",
            share,
        )
    console.print(table)


def geometric_mean(values: list[float]) -> float:
    """Of those that were measured."""
    known = [value for value in values if not math.isnan(value)]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan


def _wide(cell: dict[str, Any]) -> bool:
    return any(width in cell["shape"] for width in ("512", "1024", "3072"))


def beside_summary(result: dict[str, Any]) -> list[str]:
    """Medians beside other work: one line per thread count."""
    lines = []
    for threads in sorted({cell["threads"] for cell in result["cells"]}):
        cells = [
            c for c in result["cells"] if c["threads"] == threads and c["median_us"]["fused"] >= BESIDE_US
        ]
        slower = [c for c in cells if _median_ratio(c) < 1 - NOISE]
        lines.append(
            f"beside {result['beside']:.0%} of a core, bursts of up to {result.get('burst_ms', 12):g} ms, "
            f"{threads} threads, medians from {BESIDE_US} us on: "
            f"{geometric_mean([_median_ratio(c) for c in cells]):.2f}x the best other, over {NOISE:.0%} slower at "
            f"{len(slower)} of {len(cells)} points"
            + "".join(f"; {c['shape']} batch {c['batch']} {_median_ratio(c):.2f}x" for c in slower)
        )
    return lines


def summary(result: dict[str, Any]) -> list[str]:
    """One line per target of the benchmark and thread count."""
    lines = []
    for threads in sorted({cell["threads"] for cell in result["cells"]}):
        cells = [cell for cell in result["cells"] if cell["threads"] == threads]
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        small = [cell for cell in cells if cell["batch"] <= 16]
        slower = [cell for cell in cells if _ratio(cell) < 1 - NOISE]
        lines.append(
            f"{name}: over {NOISE:.0%} slower than the best other at {len(slower)} of {len(cells)} points"
            + "".join(f"; {c['shape']} batch {c['batch']} {_ratio(c):.2f}x" for c in slower)
        )
        eager = [
            cell["best_us"]["eager"] / cell["best_us"]["fused"]
            for cell in small
            if "eager" in cell["best_us"]
        ]
        others, eagers = geometric_mean([_ratio(cell) for cell in small]), geometric_mean(eager)
        lines.append(
            f"{name}, batch <= 16, geometric mean: {others:.2f}x the best other, {eagers:.2f}x eager"
        )
        best = geometric_mean([min(_peers(cell).values()) / cell["limit_us"] for cell in small])
        best_eager = geometric_mean(
            [cell["best_us"]["eager"] / cell["limit_us"] for cell in small if "eager" in cell["best_us"]]
        )
        lines.append(
            f"{name}, batch <= 16: at the limit of the machine it would be {best:.2f}x the best other, "
            f"{best_eager:.2f}x eager"
        )
        slow = [cell for cell in cells if cell["median_us"]["fused"] > 1.3 * cell["best_us"]["fused"]]
        lines.append(
            f"{name}: fused's median is over 1.3x its best at {len(slow)} of {len(cells)} points; by the median it "
            f"is over {NOISE:.0%} slower than the best other at {sum(_median_ratio(c) < 1 - NOISE for c in cells)}"
        )
        large = [_share(cell) for cell in cells if cell["batch"] >= 128 and _wide(cell)]
        if large:
            lines.append(
                f"{name}, batch >= 128, widths >= 512: {min(large):.0%} to {max(large):.0%} of the FMA peak, "
                f"mean {geometric_mean(large):.0%}"
            )
        normed = [cell for cell in cells if "without_norms_us" in cell]
        if normed:
            costs = [f"{c['shape']} batch {c['batch']} {_norms_cost(c):+.0%}" for c in normed]
            lines.append(
                f"{name}, norms and additions cost, over the same products alone: {', '.join(costs)}"
            )
        single = [f"{c['shape']} {_share(c):.0%}" for c in cells if c["batch"] == 1 and c["limit_us"] > 10]
        if single:
            lines.append(f"{name}, batch 1, over 1 MB of weights, of the read bandwidth: {', '.join(single)}")
    return lines


def markdown_table(result: dict[str, Any], batches: tuple[int, ...] = MARKDOWN_BATCHES) -> str:
    """One thread, or the fewest there are: the table of the README."""
    engines = [name for name in result["engines"] if name != "fused"]
    threads = min(cell["threads"] for cell in result["cells"])
    lines = [
        f"| shape | batch | **fused** | {' | '.join(engines)} | vs best other | of the limit |",
        "|---|" + "---:|" * (len(engines) + 4),
    ]
    for cell in result["cells"]:
        if cell["batch"] in batches and cell["threads"] == threads:
            fused = f"**{number(cell['best_us']['fused'])}**"
            times = [fused, *(number(cell["best_us"][name]) for name in engines)]
            lines.append(
                f"| {cell['shape']} | {cell['batch']} | {' | '.join(times)} | "
                f"{_ratio(cell):.1f}x | {_share(cell):.0%} |"
            )
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Speed relative to eager over the batch size, one panel per shape, one thread."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fused-mlp"  # the same file from the same data
    from matplotlib import pyplot

    threads = min(cell["threads"] for cell in result["cells"])
    cells = [cell for cell in result["cells"] if cell["threads"] == threads]
    shapes = list(dict.fromkeys(cell["shape"] for cell in cells))
    figure, axes = pyplot.subplots(
        -(-len(shapes) // 3), 3, figsize=(12, 3.25 * -(-len(shapes) // 3)), sharex=True, squeeze=False
    )
    for axis in axes.flat[len(shapes) :]:
        axis.axis("off")
    styles = {
        "fused": (COLOURS["fused"].light, "o", 2.2),
        "eager": (COLOURS["eager"].light, "", 1.4),
        "torch.compile": (COLOURS["compile"].light, ".", 1.4),
        "ONNX Runtime": ("#0f766e", ".", 1.4),
        "OpenVINO": ("#8a929c", ".", 1.4),
        "limit": (COLOURS["ink"].light, "", 1.0),
    }
    for axis, shape in zip(axes.flat, shapes, strict=False):
        points = [cell for cell in cells if cell["shape"] == shape]
        batches = [cell["batch"] for cell in points]
        for name in [*result["engines"], "limit"]:
            times = [cell["limit_us"] if name == "limit" else cell["best_us"][name] for cell in points]
            speed = [cell["best_us"]["eager"] / us for cell, us in zip(points, times, strict=True)]
            colour, marker, width = styles[name]
            dashes = "--" if name == "limit" else "-"
            label = "limit of the machine" if name == "limit" else name
            axis.plot(batches, speed, dashes, color=colour, marker=marker, linewidth=width, label=label)
        axis.set_title(shape, fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_major_formatter("{x:g}x")
        axis.grid(alpha=0.25)
    for axis in axes[-1]:
        axis.set_xlabel("batch (rows)")
    for axis in axes[:, 0]:
        axis.set_ylabel("speed, eager = 1x")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    cpu = result["machine"]["cpu"]
    figure.suptitle(f"One MLP forward on a CPU, {threads} thread ({cpu}), higher is faster", fontsize=11)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
