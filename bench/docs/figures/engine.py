# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.engine_locks`: how long the engine's locks are held."""

from __future__ import annotations

from bench.docs.markdown import paragraphs, provenance, span, table
from bench.docs.registry import Results, figure

MIN_WORK_NS = 100_000  # a loop runs what takes less itself
WHERE = {"on the loop": "kept by its loop", "by workers": "for workers, of 150 us each"}


@figure("engine-locks")
def engine_locks(results: Results) -> str:
    """Locks per request, and how long they are held and waited for, by the number of threads."""
    result = results["engine-locks"]
    rows = []
    for line in result["requests"]:
        rows.append(
            [
                f"{WHERE[line['where']]}, {line['burst']:.0f} at once",
                f"{line['threads']:.0f}",
                f"{line['locks']:.2f}",
                f"{line['held_ns']:,.0f}",
                f"{line['waited_ns']:,.0f}",
                f"{line['batch_ns']:,.0f}",
            ]
        )
    heads = [
        "requests",
        "threads",
        "locks per request",
        "held, ns per request",
        "waited",
        "held, ns per batch",
    ]
    held = [line["held_ns"] for line in result["requests"] if line["where"] == "by workers"]
    cores = 10 * round(MIN_WORK_NS / max(held) / 10)
    return paragraphs(
        table(heads, rows),
        f"A request for workers holds the scheduler's mutex for {span(min(held), max(held), '{:.0f}')} ns, and "
        f"computes for more than {MIN_WORK_NS // 1000} us: the mutex would be fully used at about {cores} cores.",
        provenance(result),
    )


@figure("engine-choice")
def engine_choice(results: Results) -> str:
    """How long taking a batch holds the scheduler's mutex, by ready lanes and by connections with requests."""
    result = results["engine-locks"]
    heads = ["lanes ready", "connections with a request in each", "taking a batch holds the mutex, us"]
    rows = [
        [f"{line['lanes']:,.0f}", f"{line['connections']:,.0f}", f"{line['held_ns'] / 1000:.2f}"]
        for line in result["choices"]
    ]
    return paragraphs(table(heads, rows, left=0), provenance(result))
