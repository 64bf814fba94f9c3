# SPDX-License-Identifier: Apache-2.0
"""The report of the benchmark of int8 and bfloat16: a table, and the results against the targets."""

from __future__ import annotations

import math
from typing import Any

from bench.docs.markdown import number
from bench.kernels.report import geometric_mean

OURS = "fused int8"
L2_BYTES, LAST_BYTES = 1 << 20, 32 << 20  # of the machine that we measure on


def others(cell: dict[str, Any]) -> dict[str, float]:
    return {name: us for name, us in cell["best_us"].items() if not name.startswith("fused")}


def gain(cell: dict[str, Any], engine: str = OURS) -> float:
    """Over our own float32."""
    return float(cell["best_us"]["fused"] / cell["best_us"][engine])


def ratio(cell: dict[str, Any]) -> float:
    """How many times as long as ours the best int8 of the others takes; NaN without others."""
    return float(min(others(cell).values(), default=math.nan) / cell["best_us"][OURS])


def share(cell: dict[str, Any]) -> float:
    """Reached share of the machine's int8 peak."""
    operations = 2 * cell["multiply_adds"] * cell["batch"]
    return float(operations / cell["best_us"][OURS] / 1e3 / cell["peak_int8_gops"])


def float_bytes(cell: dict[str, Any]) -> int:
    return int(4 * cell["multiply_adds"])


def wide(cell: dict[str, Any]) -> bool:
    return any(width in cell["shape"] for width in ("512", "1024", "2048", "3072", "4096"))


def precision_table(result: dict[str, Any]) -> str:
    engines = result["engines"]
    lines = [
        f"| threads | shape | batch | {' | '.join(engines)} | int8 vs float32 | vs best other int8 | of the limit |",
        "|---:|---|" + "---:|" * (len(engines) + 4),
    ]
    for cell in result["cells"]:
        times = [number(cell["best_us"][name]) for name in engines]
        lines.append(
            f"| {cell['threads']} | {cell['shape']} | {cell['batch']} | {' | '.join(times)} | {gain(cell):.1f}x | "
            f"{ratio(cell):.2f}x | {cell['int8_limit_us'] / cell['best_us'][OURS]:.0%} |"
        )
    return "\n".join(lines)


def _points(name: str, values: list[tuple[dict[str, Any], float]], target: float) -> str:
    values = [(cell, value) for cell, value in values if not math.isnan(value)]
    if not values:
        return f"{name}: not measured"
    below = [f"{c['shape']} batch {c['batch']} {value:.2f}" for c, value in values if value < target]
    least, most = min(value for _, value in values), max(value for _, value in values)
    text = f"{name}: {least:.2f} to {most:.2f}, target {target:.2f}, met at {len(values) - len(below)} of {len(values)}"
    return text + "".join(f"; {each}" for each in below)


def precision_summary(result: dict[str, Any]) -> list[str]:
    """One line per target and thread count."""
    lines = []
    for threads in sorted({cell["threads"] for cell in result["cells"]}):
        cells = [cell for cell in result["cells"] if cell["threads"] == threads]
        one = [cell for cell in cells if cell["batch"] == 1]
        cached = [c for c in one if L2_BYTES < float_bytes(c) <= LAST_BYTES]
        streamed = [c for c in one if float_bytes(c) > LAST_BYTES]
        large = [c for c in cells if 64 <= c["batch"] <= 512 and wide(c)]
        rows = [c for c in cells if c["batch"] >= 128 and wide(c)]
        found = [
            _points("int8 over float32, batch 1, over the L2 cache", [(c, gain(c)) for c in cached], 4.0),
            _points("int8 over float32, batch 1, over the last cache", [(c, gain(c)) for c in streamed], 5.0),
            _points("int8 over float32, batch 64 to 512, widths >= 512", [(c, gain(c)) for c in large], 3.5),
            _points("int8 over the best other int8", [(c, ratio(c)) for c in cells], 1.0),
            "int8 over the best other int8, batch <= 16, geometric mean: "
            f"{geometric_mean([ratio(c) for c in cells if c['batch'] <= 16]):.2f}, target 1.50",
            _points("of the int8 peak, batch >= 128, widths >= 512", [(c, share(c)) for c in rows], 0.7),
        ]
        if "fused bf16" in result["engines"]:
            gains = [(c, gain(c, "fused bf16")) for c in streamed]
            found.append(_points("bfloat16 over float32, batch 1, over the last cache", gains, 1.8))
        lines += [f"{threads} thread{'s' if threads > 1 else ''}, {line}" for line in found]
    return lines
