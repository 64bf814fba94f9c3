# SPDX-License-Identifier: Apache-2.0
"""Error against speed by precision: the geometric mean of the models, for each engine."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from bench.docs.registry import Results
from bench.kernels.report import geometric_mean
from bench.plots.svg import Drawing, log_scale, spread

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
LEFT, TOP, WIDTH, HEIGHT, GAP = 52, 96, 306, 210, 44
LABELS = 130  # room on the right of a panel


def draw(results: Results, theme: str) -> Drawing:
    speed, errors = results["kernels-int8"], results["precision-errors"]
    error = {(c["shape"], name): e["largest"] for c in errors["cells"] for name, e in c["errors"].items()}
    threads = min(c["threads"] for c in speed["cells"])
    batches = [b for b in BATCHES if any(c["batch"] == b for c in speed["cells"])]
    picture = Drawing(720, TOP + HEIGHT + 48, theme, "Error against speed by precision")
    picture.text(
        0, 16, "Error against speed by precision: right is faster, up is more exact", "ink", 14, bold=True
    )
    means = {batch: _means(speed["cells"], error, threads, batch) for batch in batches}
    exact = max(e for name, _, e in means[batches[0]] if name == EXACT)
    picture.text(0, 36, "Geometric means over the models, one thread. The other engines are in int8.")
    of_float32 = f"{Decimal(f'{100 * exact:.1g}'):f} %"
    picture.text(
        0, 50, f"Error: the largest of an output, as a share of its row's largest (float32: {of_float32})."
    )
    shown = [point for each in means.values() for point in each if point[0] != EXACT]
    low, high = min(0.5, *(s for _, s, _ in shown)), max(2.0, *(s for _, s, _ in shown))
    least, most = min(e for *_, e in shown) * 0.6, max(e for *_, e in shown) * 1.8
    up = log_scale(least, most, TOP, TOP + HEIGHT)
    for column, batch in enumerate(batches):
        left = LEFT + column * (WIDTH + GAP)
        across = log_scale(low * 0.9, high * 1.1, left, left + WIDTH - LABELS)
        picture.text(left, TOP - 14, f"batch {batch}", "ink", 12, bold=True)
        for mark in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1):
            if least <= mark <= most:
                picture.line([(left, up(mark)), (left + WIDTH, up(mark))], "line", 1)
                if column == 0:
                    picture.text(left - 6, up(mark) + 4, f"{100 * mark:g} %", anchor="end")
        for mark in (0.03, 0.1, 0.3, 0.5, 1, 2, 4, 8):
            if low * 0.9 <= mark <= high * 1.1:
                picture.line([(across(mark), TOP), (across(mark), TOP + HEIGHT)], "line", 1)
                picture.text(across(mark), TOP + HEIGHT + 16, f"{mark:g}x", anchor="middle")
        picture.text(left, TOP + HEIGHT + 34, "speed, our float32 = 1x")
        reduced = [point for point in means[batch] if point[0] != EXACT]
        for (name, s, e), place in zip(reduced, spread([up(e) for *_, e in reduced], 17), strict=True):
            title, colour = ENGINES[name]
            x = left + WIDTH - LABELS + 14
            picture.line([(across(s), up(e)), (x - 4, place)], colour, 1, "2 2")
            picture.dot(across(s), up(e), 6 if name.startswith("fused") else 4.5, colour)
            picture.text(x, place + 4, f"{title} {s:.1f}x", colour, 11.5, bold=name.startswith("fused"))
    return picture


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
