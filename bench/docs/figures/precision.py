# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.kernels --precision` and `python -m bench.serving --only precision`."""

from __future__ import annotations

import math
from typing import Any

from bench.docs.figures.kernels import by_threads, threads_text
from bench.docs.markdown import number, paragraphs, percent, provenance, span, table, times
from bench.docs.registry import Results, figure
from bench.kernels.precision_report import (
    L2_BYTES,
    LAST_BYTES,
    OURS,
    float_bytes,
    gain,
    others,
    ratio,
    share,
    wide,
)
from bench.kernels.report import geometric_mean

Cell = dict[str, Any]
TABLE_BATCHES = (1, 8, 128)
SMALL = 16


@figure("int8-table")
def int8_table(results: Results) -> str:
    """int8 and bfloat16 against float32 and against the int8 of other engines, one thread."""
    result = results["kernels-int8"]
    rows = []
    for cell in next(iter(by_threads(result).values())):
        if cell["batch"] not in TABLE_BATCHES:
            continue
        best = cell["best_us"]
        name, us = min(others(cell).items(), key=lambda each: each[1])
        rows.append(
            [
                cell["shape"], str(cell["batch"]), number(best["fused"]), number(best.get("fused bf16")),
                f"**{number(best[OURS])}**", f"{number(us)} {name.replace(' int8', '')}", times(gain(cell)),
                times(ratio(cell)), percent(cell["int8_limit_us"] / best[OURS]),
            ]
        )  # fmt: skip
    heads = [
        "model", "batch", "float32", "bfloat16", "**int8**", "best other int8", "vs float32",
        "vs best other int8", "of the limit",
    ]  # fmt: skip
    return paragraphs(table(heads, rows), provenance(result))


def _range(values: list[float], form: str = "{:.2f}x") -> str:
    known = [value for value in values if not math.isnan(value)]
    return span(min(known), max(known), form) if known else ""


def _missed(cells: list[tuple[Cell, float]], goal: float) -> str:
    below = [f"{c['shape']} at batch {c['batch']} {times(value)}" for c, value in cells if value < goal]
    if not below:
        return ""
    return f"; missed at {len(below)} of {len(cells)} points, lowest {min(v for _, v in cells):.2f}x"


@figure("int8-summary")
def int8_summary(results: Results) -> str:
    """int8 and bfloat16 against what we set out to reach, with one and two threads."""
    result = results["kernels-int8"]
    groups = by_threads(result)
    rows: dict[str, list[str]] = {}
    for cells in groups.values():
        one = [c for c in cells if c["batch"] == 1]
        cached = [(c, gain(c)) for c in one if L2_BYTES < float_bytes(c) <= LAST_BYTES]
        streamed = [(c, gain(c)) for c in one if float_bytes(c) > LAST_BYTES]
        large = [(c, gain(c)) for c in cells if 64 <= c["batch"] <= 512 and wide(c)]
        peak = [100 * share(c) for c in cells if c["batch"] >= 128 and wide(c)]
        against = [(c, ratio(c)) for c in cells]
        few = geometric_mean([ratio(c) for c in cells if c["batch"] <= SMALL])
        found = {
            "against the best other int8: never slower": _range([v for _, v in against])
            + (_missed(against, 1.0) or f", at {len(against)} of {len(against)} points"),
            f"the same at batch <= {SMALL}, geometric mean: 1.5x": times(few),
            "batch 1, float32 weights over the L2 cache: 4x float32": _range([v for _, v in cached])
            + _missed(cached, 4.0),
            "batch 1, float32 weights over the last-level cache: 5x float32": _range([v for _, v in streamed])
            + _missed(streamed, 5.0),
            "batch 64 to 512, layers of 512 or more: 3.5x float32": _range([v for _, v in large])
            + _missed(large, 3.5),
            "batch >= 128, layers of 512 or more: 70 % of the int8 peak": _range(peak, "{:.0f}") + " %",
        }
        if any("fused bf16" in c["best_us"] for c, _ in streamed):
            bf16 = [gain(c, "fused bf16") for c, _ in streamed]
            found["bfloat16, batch 1, over the last-level cache: 1.8x float32"] = _range(bf16)
        for goal, text in found.items():
            rows.setdefault(goal, []).append(text)
    heads = ["goal", *(threads_text(threads) for threads in groups)]
    return paragraphs(
        table(heads, ([goal, *found] for goal, found in rows.items()), left=len(heads)), provenance(result)
    )


@figure("int8-avx2")
def int8_avx2(results: Results) -> str:
    """int8 against float32 where there is AVX2 and no VNNI."""
    result = results["kernels-int8-avx2"]
    cells = result["cells"]
    batches = " and ".join(map(str, sorted({c["batch"] for c in cells})))
    return paragraphs(
        f"With AVX2 and without VNNI (batches of {batches}, one thread) int8 is "
        f"{_range([gain(c) for c in cells])} as fast as "
        f"float32 with AVX2, at {len(cells)} points.",
        provenance(result),
    )


@figure("int8-serving")
def int8_serving(results: Results) -> str:
    """Requests per second and CPU per request by precision, end to end."""
    result = results["serving-precision"]
    plain = result["precision"]["float32"]
    rows = []
    for name, loads in result["precision"].items():
        row = [name]
        for outstanding, found in loads.items():
            rate = found["rate"]
            row += [f"{rate:,.0f}, {times(rate / plain[outstanding]['rate'])}", f"{found['cpu_us']:.1f} us"]
        rows.append(row)
    heads = ["784-512-256-10"]
    for outstanding in plain:
        heads += [f"{outstanding} outstanding: req/s", "CPU"]
    return paragraphs(table(heads, rows), provenance(result))


@figure("int8-errors")
def int8_errors(results: Results) -> str:
    """The largest error of each precision and engine, model by model."""
    result = results["precision-errors"]
    engines = list(dict.fromkeys(name for cell in result["cells"] for name in cell["errors"]))
    rows = [
        [
            cell["shape"],
            *(
                f"{100 * cell['errors'][name]['largest']:.2g} %" if name in cell["errors"] else ""
                for name in engines
            ),
        ]
        for cell in result["cells"]
    ]
    titles = {"fused": "float32", "fused int8": "**int8**", "fused bf16": "bfloat16"}
    return paragraphs(
        table(["largest error", *(titles.get(name, name) for name in engines)], rows),
        f"Of {result['rows']} random rows and random weights, against float64: the largest difference of an "
        "output, as a "
        "share of the largest output of its row.",
        provenance(result),
    )
