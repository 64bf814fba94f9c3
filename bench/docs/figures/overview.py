# SPDX-License-Identifier: Apache-2.0
"""The small figure of the README: what fusion buys."""

from __future__ import annotations

from bench.docs.figures.serving import BASELINE, FUSED, UNFUSED, cell
from bench.docs.markdown import number, paragraphs, provenance, table, times
from bench.docs.registry import Results, figure

MODELS = (
    "64-128-128-10 relu", "784-512-256-10 relu", "256-1024-1024-256 gelu", "GeGLU 768-3072-768",
)  # fmt: skip
BATCHES = (1, 8, 64)


@figure("readme-fusion")
def readme_fusion(results: Results) -> str:
    """What fusion buys: four models at batch 1, 8 and 64, and requests per second."""
    kernels, serving = results["kernels"], results["serving"]
    best = {(c["shape"], c["batch"]): c["best_us"] for c in kernels["cells"] if c["threads"] == 1}
    rows = []
    for shape in MODELS:
        cells = [best[shape, batch] for batch in BATCHES]
        rows.append(
            [
                shape,
                *(
                    f"{number(c['eager'])} / {number(c['fused'])} us, **{times(c['eager'] / c['fused'])}**"
                    for c in cells
                ),
            ]
        )
    heads = ["one forward pass: eager / fused", *(f"batch {batch}" for batch in BATCHES)]
    fused, unfused, baseline = (
        cell(serving, "mnist", name, 128, "rate") for name in (FUSED, UNFUSED, BASELINE)
    )
    return paragraphs(
        table(heads, rows),
        f"Served over gRPC, {serving['shapes']['mnist']}, one row per request: **{fused:,.0f} requests per "
        "second** fused, "
        f"{unfused:,.0f} by the same server unfused, {baseline:,.0f} by a server written with grpc.aio and torch.",
        provenance(kernels, serving),
    )
