# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.kernels.rankers` and `python -m bench.serving.rankers`: rankers with ids and tables."""

from __future__ import annotations

from typing import Any

from bench.docs.markdown import number, paragraphs, percent, provenance, table, times
from bench.docs.registry import Results, figure

OURS = ("fused", "fused, by name")


def other(cell: dict[str, Any]) -> float:
    """The median time of the fastest other engine."""
    return min((us for name, us in cell["median_us"].items() if name not in OURS), default=float("nan"))


def against(cell: dict[str, Any], ours: str) -> str:
    return times(other(cell) / cell["median_us"][ours])


@figure("rankers")
def rankers(results: Results) -> str:
    """Microseconds per call on one thread, medians, and how many times the best other engine takes."""
    result = results["rankers"]
    compared = [cell for cell in result["cells"] if "ONNX Runtime" in cell["median_us"]]
    engines = [name for name in compared[0]["median_us"] if name not in OURS]
    rows = [
        [
            cell["shape"], str(cell["batch"]), f"**{number(cell['median_us']['fused'])}**",
            number(cell["median_us"]["fused, by name"]), *(number(cell["median_us"][name]) for name in engines),
            against(cell, "fused"), against(cell, "fused, by name"),
        ]
        for cell in compared
    ]  # fmt: skip
    heads = ["ranker", "batch", "**fused**", "by name", *engines, "best other / fused", "/ by name"]
    return paragraphs(table(heads, rows), provenance(result))


@figure("ranker-lookups")
def lookups(results: Results) -> str:
    """Lookups alone against the time in which the machine reads as many random cache lines."""
    result = results["rankers"]
    rows = [
        [
            cell["shape"], str(cell["batch"]), number(cell["median_us"]["fused"]), number(cell["lines_us"]),
            percent(cell["lines_us"] / cell["median_us"]["fused"]),
        ]
        for cell in result["cells"]
        if cell["shape"].startswith("lookups")
    ]  # fmt: skip
    heads = ["tables", "batch", "fused, us", "random cache lines alone, us", "of that limit"]
    return paragraphs(table(heads, rows), provenance(result))
