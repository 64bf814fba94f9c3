"""Run by test_native_launcher.py in a process with the fake driver: kernels from Triton's compiler through the native
launcher, the fake and the interpreter of PTX. Prints one JSON object per case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fused_mlp import kernels
from fused_mlp.kernels import KernelError, failure
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.running.native import NativeKernel
from fused_mlp.kernels.cuda.running.native_building import build_by_rule
from fused_mlp.models import Mlp
from fused_mlp.models.evaluation import evaluate
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


def cases() -> Iterator[dict[str, object]]:
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
    half = make_mlp(make_spec((20, 24, 3), dtype="float16", output="softmax"))
    yield {"case": "layered", "errors": [error_of(layered(half), half, rows) for rows in (3, 33)]}
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
