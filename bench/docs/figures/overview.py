# SPDX-License-Identifier: Apache-2.0
"""The small figure of the README: the gain of fusion."""

from __future__ import annotations

from bench.docs.figures.kernels import SMALL, geometric_mean, ratio, shapes_of, small
from bench.docs.figures.serving import BASELINE, FUSED, UNFUSED, cell
from bench.docs.markdown import number, paragraphs, provenance, table, times
from bench.docs.registry import Results, figure

MODELS = (
    "64-128-128-10 relu", "784-512-256-10 relu", "256-1024-1024-256 gelu", "GeGLU 768-3072-768",
)  # fmt: skip
BATCHES = (1, 8, 64)
OTHERS = {
    UNFUSED: "the same server unfused",
    "mosec and torch (HTTP)": "mosec",
    "Triton, Python backend, torch": "Triton's Python backend",
    BASELINE: "a server written with grpc.aio and torch",
}


@figure("readme-fusion")
def readme_fusion(results: Results) -> str:
    """The gain of fusion: four models at batch 1, 8 and 64, and requests per second."""
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
    few = small([c for c in kernels["cells"] if c["threads"] == 1])
    rates = {name: cell(serving, "mnist", name, 128, "rate") for name in serving["models"]["mnist"]}
    others = [f"{rates[name]:,.0f} by {said}" for name, said in OTHERS.items() if name in rates]
    return paragraphs(
        table(heads, rows),
        f"At batch {SMALL} or less the fused kernel is {times(geometric_mean([ratio(c) for c in few]))} as fast as the "
        f"fastest of torch.compile, ONNX Runtime and OpenVINO (geometric mean over {len(shapes_of(few))} models).",
        f"Served over gRPC, {serving['shapes']['mnist']}, one row per request: **{rates[FUSED]:,.0f} requests per "
        f"second** fused, {', '.join(others)}.",
        provenance(kernels, serving),
    )
