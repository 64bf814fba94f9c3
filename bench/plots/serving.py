# SPDX-License-Identifier: Apache-2.0
"""Requests per second by system, and the latency percentiles of each."""

from __future__ import annotations

import math
from statistics import median

from bench.docs.figures.serving import (
    BASELINE,
    FUSED,
    GRPC_ECHO,
    MODEL_TITLES,
    OWN_ECHO,
    PYTHON_FRONT,
    UNFUSED,
    cell,
)
from bench.docs.registry import Result, Results
from bench.plots.svg import Drawing, log_scale, spread

MOSEC, TRITON = "mosec and torch (HTTP)", "Triton, Python backend, torch"
SYSTEMS = {
    FUSED: ("fused-mlp, fused", "fused"),
    UNFUSED: ("fused-mlp, unfused", "unfused"),
    PYTHON_FRONT: ("fused-mlp, Python front", "compile"),
    MOSEC: ("mosec, PyTorch (HTTP)", "teal"),
    TRITON: ("Triton, PyTorch", "olive"),
    BASELINE: ("grpc.aio, PyTorch", "rose"),
    GRPC_ECHO: ("gRPC C++ echo, no model", "grey"),
    OWN_ECHO: ("our echo, no model", "grey"),
}
OUTSTANDING = 128


def draw_rates(results: Results, theme: str) -> Drawing:
    result = results["serving"]
    models = list(result["models"])
    # Not our echo: it is so much faster than all others that it would hide how they differ.
    names = [name for name in SYSTEMS if name in result["models"][models[0]] and name != OWN_ECHO]
    left, width, gap, row = 190, 170, 90, 24
    picture = Drawing(720, 62 + row * len(names) + 8, theme, "Requests per second by system")
    picture.text(
        0,
        16,
        f"Requests per second, one row each, {OUTSTANDING} outstanding (higher is better)",
        "ink",
        14,
        bold=True,
    )
    for column, model in enumerate(models):
        start = left + column * (width + gap)
        rates = {name: cell(result, model, name, OUTSTANDING, "rate") for name in names}
        most = max(rates.values())
        picture.text(start, 42, MODEL_TITLES[model], "ink", 12, bold=True)
        for index, name in enumerate(names):
            top = 54 + index * row
            title, colour = SYSTEMS[name]
            bold = name == FUSED
            if column == 0:
                picture.text(left - 10, top + 13, title, "ink" if bold else "soft", 12, "end", bold)
            length = width * rates[name] / most
            picture.box(start, top, length, 17, colour)
            picture.text(
                start + max(length, 1) + 5,
                top + 13,
                f"{rates[name]:,.0f}",
                "ink" if bold else "soft",
                12,
                bold=bold,
            )
    return picture


def _quantiles(result: Result, model: str, name: str, outstanding: int) -> dict[float, float]:
    """Medians over the rounds."""
    samples = result["models"][model][name][str(outstanding)]
    known = [q for q in samples[0]["latency_ms"] if float(q) >= 50]
    return {float(q): median(s["latency_ms"][q] for s in samples) for q in known}


def draw_latencies(results: Results, theme: str) -> Drawing:
    """The tail is stretched: each tenth of the requests that are left takes as much room as the nine before it."""
    result = results["serving"]
    outstanding = sorted(result["loads"])[len(result["loads"]) // 2]
    model = next(iter(result["models"]))
    names = [
        name for name in SYSTEMS if name in result["models"][model] and name not in (GRPC_ECHO, OWN_ECHO)
    ]
    found = {name: _quantiles(result, model, name, outstanding) for name in names}
    marks = [q for q in (50, 75, 90, 99, 99.9) if q in next(iter(found.values()))]
    left, right, top, bottom = 52, 500, 54, 300
    picture = Drawing(720, bottom + 44, theme, "Latency percentiles by system")
    picture.text(
        0,
        16,
        f"Latency of {MODEL_TITLES[model]}, {outstanding} outstanding (lower is better)",
        "ink",
        14,
        bold=True,
    )
    values = [value for each in found.values() for value in each.values()]
    up = log_scale(min(values) * 0.8, max(values) * 1.2, bottom, top)

    def tail(q: float) -> float:
        return 100 / (100 - q)

    across = log_scale(tail(marks[0]), tail(marks[-1]), left, right)
    for power in range(-2, 4):
        for mark in (10.0**power, 3 * 10.0**power):
            if min(values) * 0.8 <= mark <= max(values) * 1.2:
                picture.line([(left, up(mark)), (right, up(mark))], "line", 1)
                picture.text(left - 6, up(mark) + 4, f"{mark:g} ms", anchor="end")
    for q in marks:
        picture.text(across(tail(q)), bottom + 18, f"p{q:g}", anchor="middle")
    says = "share of requests that are at least as fast"
    picture.text((left + right) / 2, bottom + 36, says, anchor="middle")
    ends = [up(found[name][marks[-1]]) for name in names]
    for name, place in zip(names, spread(ends, 16), strict=True):
        title, colour = SYSTEMS[name]
        line = [(across(tail(q)), up(value)) for q, value in found[name].items()]
        picture.line(line, colour, 2.6 if name == FUSED else 1.8)
        for x, y in line:
            picture.dot(x, y, 2.5, colour)
        last = found[name][marks[-1]]
        digits = max(0, 2 - math.floor(math.log10(last))) if last < 100 else 0
        said = f"{title} {last:.{min(digits, 2)}f} ms"
        picture.text(right + 8, place + 4, said, colour, 12, bold=name == FUSED)
    return picture
