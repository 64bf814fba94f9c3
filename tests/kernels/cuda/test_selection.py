# SPDX-License-Identifier: Apache-2.0
"""How a candidate comes to serve a model: correctness and batch invariance first, then time over all
buckets."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fused_mlp.kernels import Backend, KernelError, KernelInfo, registry
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.cuda.check.models import Sketch
from fused_mlp.kernels.cuda.running.contexts import BUCKETS
from fused_mlp.kernels.cuda.running.cublas import CublasProgram
from fused_mlp.kernels.cuda.running.kernel import CudaKernel
from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.selection import Candidate, Trial, choose, select
from fused_mlp.models.importers.torch.writing import make_module
from fused_mlp.models.program.evaluation import evaluate
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import CountingKernels, EagerProgram
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.random_programs import random_program, random_rows, random_weights

SPEC = make_spec((5, 7, 3))
MLP = make_mlp(SPEC)
INFO = KernelInfo("fused", "triton", "cuda", "", "sm_80", "float32", 1)


def trial(label: str, seconds: tuple[float, ...]) -> Trial:
    return Trial(label, seconds=dict(zip(BUCKETS, seconds, strict=True)))


def candidate(
    label: str, spoil: Callable[[torch.Tensor, int], torch.Tensor] = lambda y, rows: y
) -> Candidate:
    return Candidate(label, lambda: EagerProgram(MLP, label, spoil))


def out_of_memory() -> Program:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def selected(*candidates: Candidate, runtime: CpuRuntime | None = None, timed: bool = True) -> CudaKernel:
    return select(candidates, MLP, runtime or CpuRuntime(), INFO, contexts=1, timed=timed)


def test_fastest_over_all_buckets_wins_though_another_is_best_at_one() -> None:
    steady = trial("steady", (5, 5, 5, 5, 5, 6, 7))
    sprinter = trial("sprinter", (4, 5, 7, 9, 15, 30, 60))
    assert choose([sprinter, steady]).label == "steady"


def test_long_times_of_large_buckets_do_not_outweigh_the_small_ones() -> None:
    small = trial("small", (1, 1, 1, 1, 1, 1, 110))
    large = trial("large", (2, 2, 2, 2, 2, 2, 100))
    assert choose([large, small]).label == "small"


def test_first_candidate_wins_a_tie() -> None:
    assert choose([trial("rule", (1,) * 7), trial("other", (1,) * 7)]).label == "rule"


def test_times_of_every_bucket_are_in_the_description() -> None:
    info = selected(candidate("whole/16"), candidate("cublas")).describe()
    assert info.strategy == "whole/16"
    assert info.reason == (
        "us per forward at 16/32/64/128/256/512/1024 rows: "
        "whole/16 1.0/1.0/1.0/1.0/1.0/1.0/1.0; cublas 1.0/1.0/1.0/1.0/1.0/1.0/1.0; "
        "launches per forward: 1, eager 3"
    )


def test_untimed_the_rules_choice_serves_and_others_are_not_built() -> None:
    other = Candidate("cublas", lambda: pytest.fail("built though not needed"))
    info = selected(candidate("whole/16"), other, timed=False).describe()
    assert info.strategy == "whole/16"
    assert info.reason == "chosen by rule, not timed; launches per forward: 1, eager 3"


def test_wrong_candidate_is_out_however_fast() -> None:
    info = selected(candidate("wrong", lambda y, rows: y + 0.01), candidate("right")).describe()
    assert info.strategy == "right"
    assert "out: wrong (triton kernel disagrees with the float64 reference" in info.reason


def test_candidate_whose_bits_depend_on_the_bucket_serves_from_one_bucket_only() -> None:
    # As cuBLAS may: another algorithm, another rounding, for another number of rows.
    kernel = selected(candidate("cublas", lambda y, rows: y * (1 + 2e-7 * (rows > 64))))
    first, many = np.empty((1, 3), np.float32), np.empty((300, 3), np.float32)
    x = np.random.default_rng(0).standard_normal((300, 5), dtype=np.float32)
    kernel.run(x[:1], first)
    kernel.run(x, many)
    np.testing.assert_array_equal(first[0], many[0])


def test_candidate_whose_bits_depend_on_the_position_is_out() -> None:
    def spoil(y: torch.Tensor, rows: int) -> torch.Tensor:
        y[rows // 2 :] *= 1 + 2e-7
        return y

    with pytest.raises(KernelError, match="fickle: a row's result depends on the rows beside it"):
        selected(candidate("fickle", spoil))


def test_each_candidate_is_gone_from_the_device_before_the_next_is_built() -> None:
    alive: weakref.WeakSet[EagerProgram] = weakref.WeakSet()
    seen: list[int] = []

    def build(label: str) -> EagerProgram:
        seen.append(len(alive))
        alive.add(program := EagerProgram(MLP, label, wrong if label == "wrong" else lambda y, rows: y))
        return program

    def wrong(y: torch.Tensor, rows: int) -> torch.Tensor:
        return y + 0.01

    labels = ("whole/16", "wrong", "layered/16", "cublas")
    kernel = selected(*(Candidate(label, lambda label=label: build(label)) for label in labels))
    assert seen == [0] * (len(labels) + 1)  # and the winner once more
    assert [program.label for program in alive] == [kernel.describe().strategy]


def test_candidate_that_does_not_fit_leaves_the_others_in_the_race() -> None:
    info = selected(Candidate("whole/16", out_of_memory), candidate("layered/16")).describe()
    assert info.strategy == "layered/16"
    assert "out: whole/16 (no room on the GPU for 0.0 MiB" in info.reason


def test_candidate_that_does_not_compile_leaves_the_others_in_the_race() -> None:
    def fail() -> Program:
        raise Exception("out of resource: shared memory")  # Triton's errors are no RuntimeErrors

    info = selected(Candidate("whole/16", fail), candidate("layered/16")).describe()
    assert info.strategy == "layered/16"
    assert "out: whole/16 (Exception: out of resource: shared memory)" in info.reason


def test_out_of_memory_falls_back_under_auto_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(mlp: object, threads: int | None) -> CudaKernel:
        return selected(Candidate("whole/16", out_of_memory))

    cuda = Backend("triton", "fused", "cuda", 100, lambda mlp: None, build)
    cpu = Backend(
        "plain", "fused", "cpu", 1, lambda mlp: None, lambda mlp, threads: EagerKernel(mlp, "cpu", None)
    )
    monkeypatch.setattr(registry, "_BACKENDS", [cuda, cpu])
    monkeypatch.setattr(registry, "default_device", lambda: "cuda")
    fallback = registry.compile(MLP).describe()
    assert (fallback.backend, fallback.device) == ("eager", "cpu")
    assert (
        "passed over triton: no strategy can run this model: whole/16: no room on the GPU" in fallback.reason
    )
    with pytest.raises(KernelError, match="Tried to allocate"):
        registry.compile(MLP, device="cuda", backend="triton")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("gated", [False, True])
def test_cublas_program_is_right(dtype: str, activation: str, gated: bool) -> None:
    # On a CPU its GEMMs are not batch-invariant, so it is run by itself; the self-check is inside `select`.
    mlp = make_mlp(make_spec((20, 30, 10), activation, gated=(gated, False), output="softmax", dtype=dtype))
    program = CublasProgram(mlp, torch.device("cpu"))
    x, y = torch.randn(16, 20, generator=torch.Generator().manual_seed(0)), torch.empty(16, 10)
    with torch.inference_mode(), CountingKernels() as launched:
        program.enqueue(x, y, 16, ())
    assert launched.count == program.launches
    with torch.inference_mode():
        dtype_of = next(mlp.to_torch().parameters()).dtype
        exact = mlp.to_torch().double()(x.to(dtype_of).double())
        eager = mlp.to_torch()(x.to(dtype_of)).double()
    allowed = 2 * (eager - exact).abs().max() + 4 * torch.finfo(dtype_of).eps * exact.abs().max()
    assert (y.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cublas_program_runs_every_program(dtype: str) -> None:
    for seed in range(12):
        mlp = random_weights(random_program(seed, max_width=60, dtype=dtype), seed)
        x = torch.from_numpy(random_rows(mlp, 40))
        y = torch.full((40, mlp.spec.out_features), torch.nan)
        program = CublasProgram(mlp, torch.device("cpu"))
        program.enqueue(x, y, 40, ())
        dtype_of = getattr(torch, dtype)
        exact = torch.from_numpy(evaluate(mlp, x.to(dtype_of).double().numpy()))
        with torch.inference_mode():
            eager = make_module(mlp, joined=True)(x.to(dtype_of)).double()
        allowed = 2 * (eager - exact).abs().max() + 4 * torch.finfo(dtype_of).eps * exact.abs().max()
        assert (y.double() - exact).abs().max() <= allowed, seed


def test_cublas_program_counts_the_launches_of_a_program() -> None:
    sketch = Sketch(6, "float32")
    h = sketch.norm(sketch.gated("input", 5, "silu"), "layer")
    h = sketch.combine("add", sketch.linear(h, 6, "relu"), "input")
    h = sketch.combine("concat", sketch.function(h, "softmax"), sketch.part(sketch.affine(h), 1, 3))
    mlp = make_mlp(sketch.spec(out=sketch.linear(h, 3, "quick_gelu"), h=h))
    program = CublasProgram(mlp, torch.device("cpu"))
    x, y = torch.ones(2, 6), torch.empty(2, 11)
    with torch.inference_mode(), CountingKernels() as launched:
        program.enqueue(x, y, 2, ())
    assert launched.count == program.launches
