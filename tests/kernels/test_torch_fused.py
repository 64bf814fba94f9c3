# SPDX-License-Identifier: Apache-2.0
"""The fused variant in plain PyTorch: right at every width, batch and dtype, and re-entrant."""

import threading
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch

from fused_mlp import kernels
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.backends.torch import TorchKernel
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Activation, LayerSpec, LayerWeights, Mlp, MlpSpec
from fused_mlp.models.program.spec import Combine, Elementwise
from tests.support.random_programs import random_mlp


def make_mlp(
    widths, activation="relu", *, gated=False, bias=True, output="identity", dtype="float32", slope=0.01
):
    """A gated model is gated in every layer, the last included."""
    generator = torch.Generator().manual_seed(len(widths))
    last = len(widths) - 2
    specs, weights = [], []
    for index, (fan_in, out) in enumerate(pairwise(widths)):
        name = activation if gated or index < last else "identity"
        leaky = {"negative_slope": slope} if name == "leaky_relu" else {}
        specs.append(LayerSpec(out_features=out, bias=bias, activation=name, gated=gated, **leaky))
        halves = [
            (
                torch.randn(out, fan_in, generator=generator) / fan_in**0.5,
                torch.randn(out, generator=generator),
            )
            for _ in range(2 if gated else 1)
        ]
        weights.append(LayerWeights(*(t if bias or t.ndim == 2 else None for half in halves for t in half)))
    leaky = {"output_negative_slope": slope} if output == "leaky_relu" else {}
    spec = MlpSpec(in_features=widths[0], layers=tuple(specs), output_activation=output, dtype=dtype, **leaky)
    return Mlp(spec, weights)


class Reference:
    """Exact results, and how far a kernel may be off: twice eager's largest error over many rows (over few, it
    may happen to be small), and a few roundings of the output."""

    def __init__(self, mlp):
        self.x = np.random.default_rng(0).standard_normal((256, mlp.spec.in_features), dtype=np.float32)
        module = mlp.to_torch().float()
        with torch.inference_mode():
            eager = module(torch.from_numpy(self.x)).double().numpy()
            self.exact = module.double()(torch.from_numpy(self.x).double()).numpy()
        self.allowed = 2 * np.abs(eager - self.exact).max()
        self.allowed += 4 * np.finfo(np.float32).eps * np.abs(self.exact).max()

    def check(self, kernel, rows, start=0):
        part = np.arange(start, start + rows) % len(self.x)
        y = np.full((rows, self.exact.shape[1]), np.nan, np.float32)
        strategy = kernel.run(self.x[part], y)
        assert np.abs(y - self.exact[part]).max(initial=0) <= self.allowed
        return strategy


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("gated", [False, True])
def test_every_activation_is_right(activation, gated):
    mlp = make_mlp((64, 100, 33), activation, gated=gated, slope=0.3, output=activation)
    kernel, reference = TorchKernel(mlp, None), Reference(mlp)
    for rows in (1, 3, 131):
        assert reference.check(kernel, rows) == "layer_by_layer"
    check_against_float64(kernel, mlp)


@pytest.mark.parametrize("output", ["softmax", "log_softmax"])
@pytest.mark.parametrize("gated", [False, True])
def test_softmax_outputs_are_right(output, gated):
    mlp = make_mlp((30, 70, 10), "gelu", gated=gated, output=output)
    kernel, reference = TorchKernel(mlp, None), Reference(mlp)
    for rows in (1, 2, 9, 70):
        reference.check(kernel, rows)


@pytest.mark.parametrize(
    "widths", [(1, 1), (1, 1, 1), (15, 17, 16), (7, 13, 3, 1), (784, 512, 256, 10), (2100, 700)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_any_width_and_batch_is_right(widths, bias):
    mlp = make_mlp(widths, bias=bias)
    kernel, reference = TorchKernel(mlp, None), Reference(mlp)
    for rows in (1, 2, 3, 8, 9, 63, 65, 256, 0, 1):
        reference.check(kernel, rows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_are_computed_in_float32(dtype):
    mlp = make_mlp((40, 30, 20), "silu", gated=True, dtype=dtype)
    kernel, reference = kernels.compile(mlp, backend="torch"), Reference(mlp)
    reference.check(kernel, 33)
    assert kernel.describe().dtype == "float32"


def test_many_threads_may_run_one_kernel():
    mlp = make_mlp((32, 60, 40, 8), "gelu", gated=True)
    kernel, reference = TorchKernel(mlp, None), Reference(mlp)
    failures = []
    start = threading.Barrier(6)

    def work(seed):
        start.wait()
        try:
            for rows in np.random.default_rng(seed).integers(1, 40, 25):
                reference.check(kernel, int(rows))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_results_do_not_change_when_the_kernel_runs_again():
    kernel = TorchKernel(make_mlp((8, 30, 5)), None)
    x = torch.randn(4, 8)
    first = kernel(x)
    before = first.clone()
    kernel(torch.randn(4, 8))
    assert torch.equal(first, before)


def test_tensors_of_other_kinds_go_through_the_same_kernel():
    kernel = TorchKernel(make_mlp((8, 30, 5)), None)
    x = torch.randn(8, 4).T  # not contiguous
    expected = kernel(x.contiguous())
    torch.testing.assert_close(kernel(x), expected)
    assert kernel(x.double()).dtype is torch.float64
    out = torch.empty(4, 5)
    assert kernel(x, out) is out
    torch.testing.assert_close(out, expected)
    np.testing.assert_allclose(kernel(x.numpy()), expected.numpy(), rtol=1e-6)
    assert kernel(torch.randn(4, 8, requires_grad=True)).shape == (4, 5)


def test_it_says_whose_threads_it_uses():
    count = torch.get_num_threads()
    assert TorchKernel(make_mlp((2, 2)), count).describe().reason == ""
    assert (
        f"pool has {count} threads, not {count + 1}"
        in TorchKernel(make_mlp((2, 2)), count + 1).describe().reason
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_right(seed):
    """Both variants in torch."""
    mlp = random_mlp(seed, max_width=80)
    for kernel in (TorchKernel(mlp, None), EagerKernel(mlp, "cpu", None)):
        check_against_float64(kernel, mlp)


def test_the_result_may_lie_over_the_input():
    """A program may still read its input when it begins to write its result."""
    steps = (
        Elementwise(name="f", input="input", function="relu"),
        Combine(op="subtract", name="rest", inputs=("f", "input")),
    )
    kernel = TorchKernel(Mlp(MlpSpec(in_features=3, steps=steps), {}), None)
    x = torch.randn(7, 3)
    expected = x.relu() - x
    assert torch.equal(kernel(x, x), expected)
