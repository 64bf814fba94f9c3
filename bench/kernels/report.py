# SPDX-License-Identifier: Apache-2.0
"""The report of the kernel benchmark: a table on the terminal, and how the results stand against the
targets. The tables of the docs are in bench/docs, the plots in bench/plots."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.docs.markdown import number

# Gains below this are noise on a shared machine.
NOISE = 0.03
BESIDE_US = 100  # below, a wake-up decides


def peers(cell: dict[str, Any]) -> dict[str, float]:
    return {name: us for name, us in cell["best_us"].items() if name != "fused"}


def ratio(cell: dict[str, Any]) -> float:
    """How many times as long as fused the best of the others takes."""
    return min(peers(cell).values()) / cell["best_us"]["fused"]


def median_ratio(cell: dict[str, Any]) -> float:
    others = [us for name, us in cell["median_us"].items() if name != "fused"]
    return min(others) / cell["median_us"]["fused"]


def share(cell: dict[str, Any]) -> float:
    """Reached share of the machine's limit."""
    return cell["limit_us"] / cell["best_us"]["fused"]


def norms_cost(cell: dict[str, Any]) -> float:
    """The cost of norms and additions, as a share of the time without them."""
    return cell["best_us"]["fused"] / cell["without_norms_us"] - 1


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
        against = median_ratio(cell) if result.get("beside") else ratio(cell)
        colour = "green" if against >= 1 else "yellow" if against >= 1 - NOISE else "red"
        of_limit = f"{share(cell):.0%} {'fma' if cell['limited_by'] == 'compute' else 'read'}"
        table.add_row(
            str(cell["threads"]),
            escape(shape),
            str(cell["batch"]),
            *times,
            f"[{colour}]{against:.2f}x[/]",
            of_limit,
        )
    console.print(table)


def geometric_mean(values: list[float]) -> float:
    """Skips NaN: a value that was not measured."""
    known = [value for value in values if not math.isnan(value)]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan


def wide(cell: dict[str, Any]) -> bool:
    return any(width in cell["shape"] for width in ("512", "1024", "3072"))


def beside_summary(result: dict[str, Any]) -> list[str]:
    """Medians beside other work: one line per thread count."""
    lines = []
    for threads in sorted({cell["threads"] for cell in result["cells"]}):
        cells = [
            c for c in result["cells"] if c["threads"] == threads and c["median_us"]["fused"] >= BESIDE_US
        ]
        slower = [c for c in cells if median_ratio(c) < 1 - NOISE]
        lines.append(
            f"beside {result['beside']:.0%} of a core, bursts of up to {result.get('burst_ms', 12):g} ms, "
            f"{threads} threads, medians from {BESIDE_US} us on: "
            f"{geometric_mean([median_ratio(c) for c in cells]):.2f}x the best other, over {NOISE:.0%} slower at "
            f"{len(slower)} of {len(cells)} points"
            + "".join(f"; {c['shape']} batch {c['batch']} {median_ratio(c):.2f}x" for c in slower)
        )
    return lines


def summary(result: dict[str, Any]) -> list[str]:
    """One line per target of the benchmark and thread count."""
    lines = []
    for threads in sorted({cell["threads"] for cell in result["cells"]}):
        cells = [cell for cell in result["cells"] if cell["threads"] == threads]
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        small = [cell for cell in cells if cell["batch"] <= 16]
        slower = [cell for cell in cells if ratio(cell) < 1 - NOISE]
        lines.append(
            f"{name}: over {NOISE:.0%} slower than the best other at {len(slower)} of {len(cells)} points"
            + "".join(f"; {c['shape']} batch {c['batch']} {ratio(c):.2f}x" for c in slower)
        )
        eager = [
            cell["best_us"]["eager"] / cell["best_us"]["fused"]
            for cell in small
            if "eager" in cell["best_us"]
        ]
        others, eagers = geometric_mean([ratio(cell) for cell in small]), geometric_mean(eager)
        lines.append(
            f"{name}, batch <= 16, geometric mean: {others:.2f}x the best other, {eagers:.2f}x eager"
        )
        best = geometric_mean([min(peers(cell).values()) / cell["limit_us"] for cell in small])
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
            f"is over {NOISE:.0%} slower than the best other at {sum(median_ratio(c) < 1 - NOISE for c in cells)}"
        )
        large = [share(cell) for cell in cells if cell["batch"] >= 128 and wide(cell)]
        if large:
            lines.append(
                f"{name}, batch >= 128, widths >= 512: {min(large):.0%} to {max(large):.0%} of the FMA peak, "
                f"mean {geometric_mean(large):.0%}"
            )
        normed = [cell for cell in cells if "without_norms_us" in cell]
        if normed:
            costs = [f"{c['shape']} batch {c['batch']} {norms_cost(c):+.0%}" for c in normed]
            lines.append(
                f"{name}, norms and additions cost, over the same products alone: {', '.join(costs)}"
            )
        single = [f"{c['shape']} {share(c):.0%}" for c in cells if c["batch"] == 1 and c["limit_us"] > 10]
        if single:
            lines.append(f"{name}, batch 1, over 1 MB of weights, of the read bandwidth: {', '.join(single)}")
    return lines
