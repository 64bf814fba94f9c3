# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.kernels`: the CPU kernel against other engines and against the machine."""

from __future__ import annotations

from typing import Any

from bench.docs.markdown import number, paragraphs, percent, provenance, span, table, times
from bench.docs.registry import Result, Results, figure
from bench.kernels.report import BESIDE_US, NOISE, geometric_mean, median_ratio, peers, ratio, share, wide

Cell = dict[str, Any]
TABLE_BATCHES = (1, 8, 64)
SMALL = 16
LARGE = 128
# Not a chain of layers: residuals, norms, skips, heads.
PROGRAMS = (
    "pre-LN tower 256x4", "tabular ResNet 192x4", "NeRF 63-256x8", "actor-critic 64 tanh", "LayerNorm 512x4 relu",
)  # fmt: skip


def by_threads(result: Result) -> dict[int, list[Cell]]:
    found: dict[int, list[Cell]] = {}
    for cell in result["cells"]:
        found.setdefault(cell["threads"], []).append(cell)
    return dict(sorted(found.items()))


def shapes_of(cells: list[Cell]) -> list[str]:
    return list(dict.fromkeys(cell["shape"] for cell in cells))


def threads_text(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"


def eager_ratio(cells: list[Cell]) -> float:
    return geometric_mean(
        [c["best_us"]["eager"] / c["best_us"]["fused"] for c in cells if "eager" in c["best_us"]]
    )


def small(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell["batch"] <= SMALL]


def slower_text(cells: list[Cell], of: Any = ratio) -> str:
    """Where another engine is faster by more than noise."""
    slower = [cell for cell in cells if of(cell) < 1 - NOISE]
    if not slower:
        return f"at none of {len(cells)} points"
    several = len(by_threads({"cells": cells})) > 1

    def point(cell: Cell) -> str:
        threads = f" on {threads_text(cell['threads'])}" if several else ""
        return f"{cell['shape']} at batch {cell['batch']}{threads} ({times(of(cell))})"

    points = ", ".join(map(point, slower))
    return f"at {len(slower)} of {len(cells)} points: {points}"


@figure("kernels-table")
def kernels_table(results: Results) -> str:
    """Microseconds per forward on one thread: every shape at batch 1, 8 and 64, every engine."""
    result = results["kernels"]
    engines = [name for name in result["engines"] if name != "fused"]
    cells = next(iter(by_threads(result).values()))
    rows = [
        [
            cell["shape"], str(cell["batch"]), f"**{number(cell['best_us']['fused'])}**",
            *(number(cell["best_us"].get(name)) for name in engines), times(ratio(cell)), percent(share(cell)),
        ]
        for cell in cells if cell["batch"] in TABLE_BATCHES
    ]  # fmt: skip
    heads = [
        "model",
        "batch",
        "**fused**",
        *engines,
        "vs best other",
        "of the limit",
    ]
    return paragraphs(table(heads, rows), provenance(result))


@figure("kernels-summary")
def kernels_summary(results: Results) -> str:
    """Sentences: geometric means, points that are lost, share of the peak."""
    result = results["kernels"]
    groups = by_threads(result)
    cells = result["cells"]
    means = ", ".join(
        f"{times(geometric_mean([ratio(c) for c in small(group)]))} as fast as the best other engine and "
        f"{times(eager_ratio(small(group)))} as eager PyTorch on {threads_text(threads)}"
        for threads, group in groups.items()
    )
    batches = len({cell["batch"] for cell in cells})
    large = [c for c in next(iter(groups.values())) if c["batch"] >= LARGE and wide(c)]
    gains = geometric_mean([ratio(c) for c in large])
    return paragraphs(
        f"At batch {SMALL} or less the fused kernel is, in the geometric mean, {means}. "
        f"{len(cells)} points were measured: {len(shapes_of(cells))} models, {batches} batch sizes, "
        f"{' and '.join(map(str, groups))} threads. Another engine is more than {percent(NOISE)} faster "
        f"{slower_text(cells)}.",
        f"From batch {LARGE} on, with layers of 512 or more, it reaches "
        f"{span(100 * min(map(share, large)), 100 * max(map(share, large)), '{:.0f}')} % of the machine's peak on one "
        f"thread. The other engines are near that limit too: there the gain over the best of them is {times(gains)}.",
    )


def _goals(result: Result) -> str:
    groups = by_threads(result)
    rows: dict[str, list[str]] = {}

    def add(goal: str, found: str) -> None:
        rows.setdefault(goal, []).append(found)

    for cells in groups.values():
        few = small(cells)
        best = geometric_mean([min(peers(c).values()) / c["limit_us"] for c in few])
        eager = geometric_mean([c["best_us"]["eager"] / c["limit_us"] for c in few])
        add(f"another engine is over {percent(NOISE)} faster, by the best time", slower_text(cells))
        add("the same by the median", slower_text(cells, median_ratio))
        add(
            f"batch <= {SMALL}, geometric mean: against the best other, against eager",
            f"{times(geometric_mean([ratio(c) for c in few]))}, {times(eager_ratio(few))}",
        )
        add("the same for a kernel at the limit of the machine", f"{times(best)}, {times(eager)}")
        shares = [100 * share(c) for c in cells if c["batch"] >= LARGE and wide(c)]
        add(
            f"batch >= {LARGE}, layers of 512 or more: share of the FMA peak",
            f"{span(min(shares), max(shares), '{:.0f}')} %",
        )
        reads = [100 * share(c) for c in cells if c["batch"] == 1 and c["limit_us"] > 10]
        add(
            "batch 1, over 1 MB of weights: share of the read bandwidth",
            f"{span(min(reads), max(reads), '{:.0f}')} %",
        )
        first = next(c for c in cells if c["shape"].startswith("64-128-128-10") and c["batch"] == 1)
        add("64-128-128-10, batch 1, called from Python", f"{number(first['best_us']['fused'])} us")
    heads = ["", *(threads_text(threads) for threads in groups)]
    return table(heads, ([goal, *found] for goal, found in rows.items()), left=len(heads))


@figure("kernels-goals")
def kernels_goals(results: Results) -> str:
    """The main run against its limits, with one and two threads."""
    return paragraphs(_goals(results["kernels"]), provenance(results["kernels"]))


@figure("kernels-by-shape")
def kernels_by_shape(results: Results) -> str:
    """Batch <= 16 on one thread, model by model: against the best other, and what the machine would allow."""
    result = results["kernels"]
    cells = next(iter(by_threads(result).values()))
    rows = []
    for shape in shapes_of(cells):
        few = [c for c in small(cells) if c["shape"] == shape]
        limit = geometric_mean([min(peers(c).values()) / c["limit_us"] for c in few])
        reached = geometric_mean([share(c) for c in few])
        rows.append([shape, times(geometric_mean([ratio(c) for c in few])), times(limit), percent(reached)])
    heads = ["model", "fused against the best other", "a kernel at the machine's limit", "share of the limit"]
    return paragraphs(table(heads, rows), provenance(result))


@figure("kernels-programs")
def kernels_programs(results: Results) -> str:
    """Models that are no chain of layers: fused and the best other at batch 1, 16 and 128."""
    result = results["kernels"]
    cells = next(iter(by_threads(result).values()))
    shown = [c for c in cells if c["shape"] in PROGRAMS]
    batches = (1, 16, 128)

    def pair(shape: str, batch: int) -> str:
        (cell,) = [c for c in shown if (c["shape"], c["batch"]) == (shape, batch)]
        return f"{number(cell['best_us']['fused'])}, {number(min(peers(cell).values()))} us"

    rows = []
    for shape in shapes_of(shown):
        mean = geometric_mean([ratio(c) for c in small(shown) if c["shape"] == shape])
        rows.append([shape, *(pair(shape, batch) for batch in batches), times(mean)])
    heads = [
        "",
        *(f"batch {b}: fused, best other" for b in batches),
        f"batch <= {SMALL}, against the best other",
    ]
    costs = [(c["best_us"]["fused"] / c["without_norms_us"] - 1) for c in cells if "without_norms_us" in c]
    norms = (
        f" Norms and additions cost at most {percent(max(costs))} over the same products without them."
        if costs
        else ""
    )
    return paragraphs(
        table(heads, rows),
        f"Over these {len(shown)} points another engine is more than {percent(NOISE)} faster {slower_text(shown)}; "
        f"at batch {SMALL} or less fused is {times(geometric_mean([ratio(c) for c in small(shown)]))} as fast as the "
        f"best other and {times(eager_ratio(small(shown)))} as eager (geometric mean, one thread).{norms}",
        provenance(result),
    )


def _beside(result: Result) -> str:
    cells = [c for c in result["cells"] if c["median_us"]["fused"] >= BESIDE_US]
    found = [median_ratio(c) for c in cells]
    others = [name for name in result["engines"] if name != "fused"]
    return (
        f"{len(cells)} points from {BESIDE_US} us on, {len(shapes_of(cells))} models, against {', '.join(others)}: by "
        f"the median {times(geometric_mean(found))} as fast as the best other (geometric mean; {times(min(found))} to "
        f"{times(max(found))}). Another engine is more than {percent(NOISE)} faster {slower_text(cells, median_ratio)}."
    )


@figure("kernels-beside")
def kernels_beside(results: Results) -> str:
    """Medians of two threads beside a process that uses 40 % of a core in short bursts."""
    return paragraphs(_beside(results["kernels-beside"]), provenance(results["kernels-beside"]))


@figure("kernels-beside-long")
def kernels_beside_long(results: Results) -> str:
    """The same beside bursts of up to 100 ms."""
    return paragraphs(_beside(results["kernels-beside-long"]), provenance(results["kernels-beside-long"]))
