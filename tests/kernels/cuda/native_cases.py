# SPDX-License-Identifier: Apache-2.0
"""Run by test_native_launcher.py in a process with the fake driver: kernels from Triton's compiler through the native
launcher, the fake and the interpreter of PTX. Prints one JSON object per case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch

from fused_mlp import kernels
from fused_mlp.kernels import KernelError, KernelInfo, failure
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.forward import plan_forward
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.running import native
from fused_mlp.kernels.cuda.running.contexts import ContextPool, LaunchContext
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.kernels.cuda.running.native import NativeKernel
from fused_mlp.kernels.cuda.running.native_building import (
    build_by_rule,
    compile_forward,
    with_native_launcher,
)
from fused_mlp.kernels.cuda.running.packing import pack
from fused_mlp.models import Mlp
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.service.catalog.versions.placement import choose_devices
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import EagerProgram
from tests.kernels.cuda.random_models import make_mlp, make_spec

FAIL_FILE = Path(os.environ["FAKE_CUDA_FAIL_FILE"])
SMALL = make_mlp(make_spec((5, 7, 3)))


@contextmanager
def failing(symbol: str, code: int) -> Iterator[None]:
    FAIL_FILE.write_text(f"{symbol} {code}")
    try:
        yield
    finally:
        FAIL_FILE.unlink()


def rows_for(mlp: Mlp, rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, mlp.spec.in_features), dtype=np.float32)


def error_of(kernel: kernels.Kernel, mlp: Mlp, rows: int) -> float:
    x = rows_for(mlp, rows)
    return float(np.abs(kernel(x) - evaluate(mlp, x.astype(np.float64))).max())


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except KernelError as error:
        return str(error)
    return ""


def layered(mlp: Mlp) -> NativeKernel:
    tiles = [tile for tile in candidate_tiles(mlp.spec, ARCHITECTURES[0]) if tile.strategy == "layered"]
    return build_by_rule(mlp, 0, ARCHITECTURES[0], tiles[:1])


class ProgramOnDriver(EagerProgram):
    """What `TritonProgram` has for another launcher, on the fake device. Through torch it is eager."""

    def __init__(self, mlp: Mlp) -> None:
        super().__init__(mlp)
        self.forward = plan_forward(mlp.spec, candidate_tiles(mlp.spec, ARCHITECTURES[0])[0])
        self.tensors = native.upload(0, pack(mlp, self.forward))
        self.binaries = [SimpleNamespace(compiled=each) for each in compile_forward(self.forward, 80)]


class OfAnotherTriton(ProgramOnDriver):
    """Its compiled kernels have other metadata, or other parameters."""

    def __init__(self, mlp: Mlp, fields: dict[str, object], parameters: str = "") -> None:
        super().__init__(mlp)
        for binary in self.binaries:
            compiled = binary.compiled
            asm = compiled.asm | {"ptx": compiled.asm["ptx"].replace("(\n", f"({parameters}\n", 1)}
            named = fields | {"name": compiled.metadata.name}
            binary.compiled = SimpleNamespace(asm=asm, metadata=SimpleNamespace(**named))


def chosen_by_torch(strategy: str, program: EagerProgram) -> kernels.Kernel:
    """As `backend` hands it over after the race."""
    runtime = CpuRuntime()
    runtime.device = torch.device("cuda", 0)
    context = LaunchContext(runtime, program, SMALL.spec, (16,))
    info = KernelInfo("fused", "triton", "cuda:0", strategy, "sm_80", "float32", 1, "the fastest")
    return with_native_launcher(CudaKernel(SMALL.spec, info, ContextPool([context])))


class Wavering(NativeKernel):
    """Its results depend on the size of the batch: `rows` and more are off."""

    rows = 0
    replayed: ClassVar[list[str]] = []

    def run(self, x: np.ndarray, y: np.ndarray) -> str:
        strategy = super().run(x, y)
        y += np.float32(x.shape[0] >= self.rows)
        return strategy

    def replay_graphs(self) -> None:
        super().replay_graphs()
        self.replayed.append(self.describe().strategy)


def handed_over_wavering(rows: int) -> kernels.Kernel:
    Wavering.rows = rows
    steady, native.NativeKernel = native.NativeKernel, Wavering  # type: ignore[misc]
    try:
        return chosen_by_torch("whole/16", ProgramOnDriver(SMALL))
    finally:
        native.NativeKernel = steady  # type: ignore[misc]


def cases() -> Iterator[dict[str, object]]:
    yield {"case": "counted", "count": native.count(), "opened": native.open_device.cache_info().currsize}
    kernel = kernels.compile(SMALL, device="cuda", backend="triton")
    assert isinstance(kernel, NativeKernel)
    yield {
        "case": "whole",
        "info": str(kernel.describe()),
        "errors": [error_of(kernel, SMALL, rows) for rows in (1, 17, 70)],
        "memory": kernel.memory_bytes,
        "has_capsule": kernel.capsule() is not None,
        "wrong shape": message(lambda: kernel.run(rows_for(SMALL, 2), np.empty((2, 4), np.float32))),
    }
    second = kernels.compile(SMALL, device="cuda:1", backend="triton")
    yield {
        "case": "second",
        "device": second.describe().device,
        "error": error_of(second, SMALL, 17),
        "everywhere": choose_devices("cuda:all"),
        "third": message(lambda: kernels.compile(SMALL, device="cuda:2", backend="triton")),
        "like": kernels.registry.compile_like(kernel, SMALL, "cuda:1").describe().strategy,
    }
    half = make_mlp(make_spec((20, 24, 3), dtype="float16", output="softmax"))
    yield {"case": "layered", "errors": [error_of(layered(half), half, rows) for rows in (3, 33)]}
    long = make_mlp(make_spec((1100, 20, 3)))
    tiles = [tile for tile in candidate_tiles(long.spec, native.architecture(0)) if tile.label == "split/16"]
    kernel_of_parts = build_by_rule(long, 0, native.architecture(0), tiles)
    yield {
        "case": "split",
        "info": str(kernel_of_parts.describe()),
        "errors": [error_of(kernel_of_parts, long, rows) for rows in (1, 17)],
    }
    handed_over = chosen_by_torch("whole/16", ProgramOnDriver(SMALL))
    in_torch = chosen_by_torch("cublas", EagerProgram(SMALL))
    yield {
        "case": "handed over",
        "error": error_of(handed_over, SMALL, 17),
        "native": [isinstance(kernel, NativeKernel) for kernel in (handed_over, in_torch)],
        "reasons": [kernel.describe().reason for kernel in (handed_over, in_torch)],
    }
    yield {
        "case": "wavering",
        "reasons": {rows: handed_over_wavering(rows).describe().reason for rows in (33, 200, 1025, 1026)},
        "replayed": Wavering.replayed,
    }
    needs = dict.fromkeys(("global_scratch_size", "profile_scratch_size", "launch_pdl"), 0)
    needs |= {"launch_cooperative_grid": False, "num_ctas": 1, "num_warps": 4, "shared": 0}
    others = [
        OfAnotherTriton(SMALL, {}),
        OfAnotherTriton(SMALL, needs | {"launch_pdl": True}),
        OfAnotherTriton(SMALL, needs, ".param .u64 more, "),
    ]
    yield {
        "case": "another triton",
        "reasons": [chosen_by_torch("whole/16", program).describe().reason for program in others],
    }
    with failing("cuMemAlloc_v2", 2):
        refused = message(lambda: kernels.compile(SMALL, device="cuda", backend="triton"))
    yield {"case": "no memory", "message": refused}
    x, y = rows_for(SMALL, 2), np.empty((2, 3), np.float32)
    with failing("cuLaunchKernel", 701):
        refused = message(lambda: kernel.run(x, y))
    yield {
        "case": "one failure",
        "message": refused,
        "error": error_of(kernel, SMALL, 2),
        "lost": failure.failure(),
    }
    with failing("kernel", 719):
        refused = message(lambda: kernel.run(x, y))
    yield {
        "case": "lost",
        "message": refused,
        "later": message(lambda: kernel.run(x, y)),
        "lost": failure.failure(),
    }


if __name__ == "__main__":
    for case in cases():
        print(json.dumps(case), flush=True)
