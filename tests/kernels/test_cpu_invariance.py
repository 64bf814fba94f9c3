# SPDX-License-Identifier: Apache-2.0
"""A row's result does not depend, to the bit, on the rows beside it, on its place, on the threads or on
where the arrays lie in memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_mlp.kernels import _cpu
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from tests.kernels.cpu_models import plain_mlp, random_mlp, rows_for, run, specs

ISAS = _cpu.usable_isas()


def gated_mlp() -> Mlp:
    layers = (LayerSpec(out_features=70, activation="gelu", gated=True), LayerSpec(out_features=33))
    return random_mlp(MlpSpec(in_features=130, layers=layers, output_activation="softmax"))


MODELS = {
    "small": plain_mlp(64, 128, 128, 10),
    # Wide enough to be shared between threads by columns, then by rows.
    "wide": plain_mlp(333, 700, 513, 17, activation="gelu", output="log_softmax"),
    "gated": gated_mlp(),
}


def one_by_one(kernel: CpuKernel, x: np.ndarray) -> np.ndarray:
    return np.concatenate([run(kernel, x[i : i + 1]) for i in range(len(x))])


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_every_batch_size_gives_the_bits_of_single_rows(model: str, threads: int, isa: str) -> None:
    mlp = MODELS[model]
    kernel = CpuKernel(mlp, threads, isa)
    x = rows_for(mlp, 512)
    expected = one_by_one(CpuKernel(mlp, 1, isa), x)
    # All of 1..512 where it is quick; on the slow instruction set and the wide model, all remainders.
    quick = model != "wide" and isa != "portable"
    sizes = range(1, 513) if quick else [*range(1, 40), 63, 64, 65, 127, 128, 129, 250, 512]
    for rows in sizes:
        assert_same_bits(run(kernel, x[:rows]), expected[:rows])


def test_models_that_outgrow_the_caches_give_the_bits_of_single_rows() -> None:
    # Over 24 MiB of weights, and more rows than go layer by layer together.
    mlp = plain_mlp(1024, 4096, 512, 2048, activation="gelu")
    kernel = CpuKernel(mlp, 2)
    x = rows_for(mlp, 515)
    expected = run(kernel, x)
    for rows in (2, 3, 4, 7):
        assert_same_bits(run(kernel, x[:rows]), expected[:rows])
    for row in (0, 5, 511, 512, 514):
        assert_same_bits(run(kernel, x[row : row + 1]), expected[row : row + 1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), rows=st.integers(2, 30), isa=st.sampled_from(ISAS), threads=st.integers(1, 2))
def test_any_model_is_batch_invariant(spec: MlpSpec, rows: int, isa: str, threads: int) -> None:
    mlp = random_mlp(spec)
    kernel = CpuKernel(mlp, threads, isa)
    x = rows_for(mlp, rows)
    assert_same_bits(run(kernel, x), one_by_one(kernel, x))


@pytest.mark.parametrize("isa", ISAS)
def test_position_in_the_batch_does_not_matter(isa: str) -> None:
    kernel = CpuKernel(MODELS["gated"], 1, isa)
    x = rows_for(MODELS["gated"], 29)
    y = run(kernel, x)
    for shift in range(1, 29):
        assert_same_bits(run(kernel, np.roll(x, shift, axis=0)), np.roll(y, shift, axis=0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offset", [4, 12, 32, 60])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_alignment_does_not_matter(isa: str, offset: int, rows: int) -> None:
    mlp = MODELS["small"]
    kernel = CpuKernel(mlp, 1, isa)
    x = rows_for(mlp, rows)
    shifted_x = (
        np.zeros(x.nbytes + 64, np.uint8)[offset : offset + x.nbytes].view(np.float32).reshape(x.shape)
    )
    shifted_x[:] = x
    guarded = np.full(rows * 40 + 128, 0xAA, np.uint8)
    shifted_y = guarded[offset : offset + rows * 40].view(np.float32).reshape(rows, 10)
    kernel.run(shifted_x, shifted_y)
    assert_same_bits(shifted_y, run(kernel, x))
    assert (guarded[:offset] == 0xAA).all()
    assert (guarded[offset + rows * 40 :] == 0xAA).all(), "wrote past the end of y"


def test_neighbours_of_nan_and_infinity_are_untouched() -> None:
    mlp = MODELS["wide"]
    kernel = CpuKernel(mlp, 2)
    x = rows_for(mlp, 40)
    expected = run(kernel, x)
    poisoned = x.copy()
    poisoned[::3] = np.nan
    poisoned[1::3, 5] = np.inf
    assert_same_bits(run(kernel, poisoned)[2::3], expected[2::3])


def test_many_threads_may_run_one_kernel() -> None:
    mlp = MODELS["wide"]
    kernel = CpuKernel(mlp, 2)
    sizes = [1, 3, 8, 33, 100]
    x = rows_for(mlp, 100)
    expected = one_by_one(kernel, x)
    start = threading.Barrier(6)
    wrong: list[int] = []

    def work() -> None:
        start.wait()
        for _ in range(30):
            for rows in sizes:
                if not np.array_equal(run(kernel, x[:rows]), expected[:rows]):
                    wrong.append(rows)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
