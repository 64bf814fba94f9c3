"""An ESTIMATE, not a measurement: time per forward on an A100 and an H100 from bytes, FLOPs and launches.

    python -m bench.kernels.roofline

Assumptions, in words:
* Weights and activations are read from L2 when the weights fit in it (a served model is warm), else from HBM.
* A launch costs 2.2 us inside a CUDA graph's replay when it waits for the one before it, 5 us from eager
  Python when the queue runs dry (small batches are bound by the host), and a replay itself 4 us.
* A phase takes the longer of bytes / bandwidth and FLOPs / (0.6 of the peak, what good GEMMs reach), both
  scaled down to the multiprocessors that its blocks occupy (all of them for eager: cuBLAS splits sums).
* `whole` reads every weight once per block of rows; `layered` once per launch, and its input once
  per eight blocks of columns (caches serve the rest); eager once per GEMM, and it
  writes and reads each activation once more.
* Copies between host and device are left out: they are the same for all.
Wrong by a factor of two is to be expected; `make bench-gpu` measures."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from fused_mlp.kernels.cuda.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.check_models import EXAMPLES
from fused_mlp.kernels.cuda.plans import eager_launches, layered_plans, pad, precision_of
from fused_mlp.kernels.cuda.rule import packed_bytes, tile_by_rule
from fused_mlp.kernels.cuda.tiles import Tile
from fused_mlp.models import MlpSpec

GRAPH_LAUNCH_S = 2.2e-6
GRAPH_REPLAY_S = 4e-6
EAGER_LAUNCH_S = 5e-6
EFFICIENCY = 0.6
ROWS = (1, 16, 128, 1024)


@dataclass(frozen=True)
class Gpu:
    """From the vendor's data sheets (dense, without sparsity); L2 bandwidth as commonly measured."""

    name: str
    capability: int
    multiprocessors: int
    hbm_bytes_per_s: float
    l2_bytes_per_s: float
    l2_bytes: int
    flops: dict[str, float]  # by precision


GPUS = (
    Gpu(
        "A100 SXM 80 GB", 80, 108, 2.04e12, 5e12, 40 << 20, {"half": 312e12, "tf32": 156e12, "ieee": 19.5e12}
    ),
    Gpu("H100 SXM 80 GB", 90, 132, 3.35e12, 7e12, 50 << 20, {"half": 989e12, "tf32": 494e12, "ieee": 67e12}),
)


def phase_seconds(
    gpu: Gpu, bytes_moved: float, flops: float, blocks: int, precision: str, resident: float
) -> float:
    """One launch's work, spread over min(blocks, multiprocessors)."""
    bandwidth = gpu.l2_bytes_per_s if resident <= gpu.l2_bytes else gpu.hbm_bytes_per_s
    share = min(1.0, blocks / gpu.multiprocessors)
    return max(bytes_moved / (bandwidth * share), flops / (gpu.flops[precision] * EFFICIENCY * share))


def layer_shapes(spec: MlpSpec) -> list[tuple[int, int]]:
    """(in, out) of each layer; a gated layer computes twice its width."""
    return [
        (fan_in, layer.out_features * (2 if layer.gated else 1))
        for fan_in, layer in zip(spec.widths, spec.layers, strict=False)
    ]


def fused_seconds(spec: MlpSpec, gpu: Gpu, rows: int, tile: Tile) -> float:
    element = 4 if spec.dtype == "float32" else 2
    blocks = -(-rows // tile.block_m)
    padded = blocks * tile.block_m
    precision = precision_of(spec, tf32=False)
    resident = spec.parameters * element
    if tile.strategy == "whole":
        weights = packed_bytes(spec, tile)
        moved = blocks * weights + rows * (spec.in_features + spec.out_features) * 4
        flops = 2 * padded * weights / element
        work = phase_seconds(gpu, moved, flops, blocks, precision, resident)
        return GRAPH_REPLAY_S + GRAPH_LAUNCH_S + work
    seconds = GRAPH_REPLAY_S
    for fan_in, out in layer_shapes(spec):
        columns = pad(out, tile.block_n) // tile.block_n
        moved = element * (fan_in * out + columns * rows * fan_in / 8 + rows * out)
        flops = 2.0 * padded * fan_in * out
        seconds += GRAPH_LAUNCH_S + phase_seconds(gpu, moved, flops, blocks * columns, precision, resident)
    return seconds + GRAPH_LAUNCH_S * (len(layered_plans(spec, tile)) - len(spec.layers))


def eager_seconds(spec: MlpSpec, gpu: Gpu, rows: int) -> float:
    element = 4 if spec.dtype == "float32" else 2
    precision = precision_of(spec, tf32=False)
    work = 0.0
    for fan_in, out in layer_shapes(spec):
        moved = element * (fan_in * out + rows * (fan_in + 3 * out))
        work += phase_seconds(
            gpu, moved, 2.0 * rows * fan_in * out, gpu.multiprocessors, precision, spec.parameters * element
        )
    launches = eager_launches(spec)
    # The host enqueues while the device works: whichever is slower, and one launch that nothing hides.
    return max(launches * EAGER_LAUNCH_S, work + launches * GRAPH_LAUNCH_S) + EAGER_LAUNCH_S


def main() -> int:
    records: list[dict[str, object]] = []
    table = Table(title="ESTIMATE, not measured: us per forward, on the device", header_style="bold")
    for heading in ("GPU", "model", "rows", "strategy", "fused", "eager", "ratio"):
        table.add_column(
            heading, justify="right" if heading in ("rows", "fused", "eager", "ratio") else "left"
        )
    for gpu in GPUS:
        architecture = next(entry for entry in ARCHITECTURES if entry.capability == gpu.capability)
        for spec in EXAMPLES:
            for rows in ROWS:
                tile = tile_by_rule(spec, architecture, rows)
                fused, eager = fused_seconds(spec, gpu, rows, tile), eager_seconds(spec, gpu, rows)
                model = f"{spec.summary()} {spec.dtype}"
                figures = (f"{fused * 1e6:.1f}", f"{eager * 1e6:.1f}", f"{eager / fused:.1f}")
                table.add_row(gpu.name, model, str(rows), tile.label, *figures)
                records.append(
                    {
                        "estimate": True,
                        "gpu": gpu.name,
                        "model": model,
                        "rows": rows,
                        "strategy": tile.label,
                        "fused_us": round(fused * 1e6, 1),
                        "eager_us": round(eager * 1e6, 1),
                    }
                )
    if "--json" in sys.argv[1:]:
        print(json.dumps(records, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(table)
        console.print(__doc__[__doc__.index("Assumptions") :], highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
