# SPDX-License-Identifier: Apache-2.0
"""compile(): which kernel is taken, what is passed over, and what is said about it."""

import logging
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from fused_mlp import kernels, models
from fused_mlp.kernels import Backend, KernelError, KernelInputError, KernelUnavailable, _cpu, registry
from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.selfcheck import PROBE_ROWS, check_against_float64, probe_input
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, MlpSpec
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import Linear, Norm, Output
from tests.support.random_programs import random_mlp, random_weights


def make_mlp(dtype="float32", scale=1.0):
    torch.manual_seed(0)
    spec = MlpSpec(
        in_features=4,
        layers=(LayerSpec(out_features=8, activation="relu"), LayerSpec(out_features=3)),
        dtype=dtype,
    )
    layers = [
        LayerWeights(torch.randn(8, 4) * scale, torch.randn(8)),
        LayerWeights(torch.randn(3, 8) * scale, torch.randn(3)),
    ]
    return Mlp(spec, layers)


class Off(EagerKernel):
    """A kernel that is wrong from some number of rows down."""

    up_to_rows = 99
    by = 1e-3

    def run(self, x, y):
        strategy = super().run(x, y)
        if len(x) <= self.up_to_rows:
            y += self.by
        return strategy


def backend(name, rank, build=None, why=None, device="cpu"):
    build = build or (lambda mlp, threads: EagerKernel(mlp, "cpu", threads))
    return Backend(name, "fused", device, rank, lambda mlp: why, build)


def raising(error):
    def build(mlp, threads):
        raise error

    return build


@pytest.fixture
def only(monkeypatch):
    """Replaces the registered backends."""

    def replace(*backends):
        monkeypatch.setattr(registry, "_BACKENDS", [])
        for each in backends:
            registry.register(each)

    return replace


def test_auto_takes_the_highest_rank_and_says_so(only):
    taken = []

    def build(mlp, threads):
        taken.append(threads)
        return EagerKernel(mlp, "cpu", threads)

    only(backend("low", 1), backend("high", 9, build), backend("middle", 5))
    kernel = kernels.compile(make_mlp(), threads=3)
    assert taken == [3]
    assert kernel.describe().reason == "the first choice of auto"
    assert [b.name for b in kernels.backends("fused", "cpu")] == ["high", "middle", "low"]


def test_auto_passes_over_a_kernel_that_fails_its_check_and_says_so(only, caplog):
    only(backend("wrong", 9, lambda mlp, threads: Off(mlp, "cpu", threads)), backend("right", 1))
    with caplog.at_level(logging.WARNING):
        kernel = kernels.compile(make_mlp())
    assert "passed over wrong: eager kernel disagrees with the float64 reference" in kernel.describe().reason
    assert "'wrong' is not used" in caplog.text
    assert not isinstance(kernel, Off)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KernelUnavailable("no such instruction"), "no such instruction"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("compiler says\nmany things"), "RuntimeError: compiler says$"),
    ],
)
def test_auto_survives_a_build_that_fails(only, error, text):
    only(backend("broken", 9, raising(error)), backend("right", 1))
    assert text.rstrip("$") in kernels.compile(make_mlp()).describe().reason


def test_auto_says_why_nothing_can_run(only):
    only(backend("a", 9, why="needs AVX-512"), backend("b", 1, raising(KernelError("failed"))))
    with pytest.raises(
        KernelUnavailable, match="no fused kernel can run this model on cpu: a: needs AVX-512; b: failed"
    ):
        kernels.compile(make_mlp(), device="cpu")
    only()
    with pytest.raises(KernelUnavailable, match="none is registered"):
        kernels.compile(make_mlp())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nope", "backend 'nope': there is no fused backend on cpu of that name; usable here: wrong, good"),
        ("absent", "backend 'absent': not built; usable here: wrong, good"),
        ("wrong", "backend 'wrong': eager kernel disagrees .*; usable here: good"),
    ],
)
def test_a_name_that_cannot_run_fails_and_lists_what_can(only, name, text):
    only(
        backend("absent", 9, why="not built"),
        backend("wrong", 5, lambda mlp, threads: Off(mlp, "cpu", threads)),
        backend("good", 1),
    )
    with pytest.raises(KernelUnavailable, match=text):
        kernels.compile(make_mlp(), device="cpu", backend=name)


def test_a_name_is_found_on_any_device_when_the_device_is_auto(only, monkeypatch):
    monkeypatch.setattr(registry, "default_device", lambda: "cuda")
    only(backend("gpu", 9, why="no memory", device="cuda"), backend("plain", 1))
    assert kernels.compile(make_mlp(), backend="plain").describe().device == "cpu"
    with pytest.raises(KernelUnavailable, match="no fused backend on cuda of that name"):
        kernels.compile(make_mlp(), backend="plain", device="cuda")
    assert "passed over gpu: no memory" in kernels.compile(make_mlp()).describe().reason


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"variant": "faster"}, "variant: expected 'fused' or 'unfused', got 'faster'"),
        *(
            ({"device": name}, f"device: expected 'auto', 'cpu', 'cuda' or 'cuda:N', got '{name}'")
            for name in ("tpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "auto:1")
        ),
        ({"threads": 0}, "threads: expected 1 to 1024, got 0"),
        ({"threads": 5000}, "threads: expected 1 to 1024, got 5000"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text):
    with pytest.raises(KernelUnavailable, match=text):
        kernels.compile(make_mlp(), **arguments)


def test_the_fused_torch_kernel_and_the_unfused_one_are_registered():
    assert "torch" in [b.name for b in kernels.backends("fused", "cpu")]
    for variant, name in (("fused", "torch"), ("unfused", "eager")):
        info = kernels.compile(make_mlp(), variant=variant, backend=name, device="cpu").describe()
        assert (info.variant, info.backend, info.device) == (variant, name, "cpu")
        assert str(info).startswith(f"{variant}: {name} on cpu (")


# -- the self-check


@pytest.mark.parametrize("rows", PROBE_ROWS)
def test_a_kernel_that_is_wrong_for_some_batch_sizes_only_is_found(rows):
    kernel = Off(make_mlp(), "cpu", None)
    kernel.up_to_rows = rows
    with pytest.raises(KernelError, match="disagrees with the float64 reference at"):
        check_against_float64(kernel, make_mlp())


@pytest.mark.parametrize("by", [np.nan, np.inf])
def test_nan_and_infinity_are_found(by):
    kernel = Off(make_mlp(), "cpu", None)
    kernel.by = by
    with pytest.raises(KernelError, match="largest error"):
        check_against_float64(kernel, make_mlp())


def test_output_that_is_not_written_is_found():
    class Lazy(EagerKernel):
        def run(self, x, y):
            return "none"

    with pytest.raises(KernelError, match="largest error nan"):
        check_against_float64(Lazy(make_mlp(), "cpu", None), make_mlp())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_eager_passes_its_own_check_in_every_dtype(dtype):
    check_against_float64(EagerKernel(make_mlp(dtype), "cpu", None), make_mlp(dtype))


# Of the first 400 those with which eager is luckiest: among the 19 rows of the kernel its largest error is so small
# that a right kernel's is up to 22 times what would be allowed.
LUCKY = (152, 235, 393, 171, 72, 366, 355, 109, 149)


def test_a_right_kernel_is_not_refused_for_eagers_good_luck():
    # One output: among a few rows eager's largest error may be next to nothing.
    hidden = [LayerSpec(out_features=width, activation="gelu") for width in (256, 64)]
    spec = MlpSpec.of_layers(64, [*hidden, LayerSpec(out_features=1)])
    for seed in LUCKY:
        mlp = random_weights(spec, seed)
        for isa in _cpu.usable_isas():
            check_against_float64(CpuKernel(mlp, 1, isa), mlp)


def test_a_half_precision_model_that_overflows_in_eager_is_still_checked():
    mlp = make_mlp("float16", scale=150.0)  # outputs around the largest float16
    with torch.inference_mode():
        eager = mlp.to_torch()(torch.from_numpy(probe_input(mlp)).half())
    assert not torch.isfinite(eager).all()
    for variant in ("unfused", "fused"):
        kernels.compile(mlp, variant=variant, device="cpu")
    wrong = Off(mlp, "cpu", None)
    wrong.by = 1e4
    with pytest.raises(KernelError, match="disagrees"):
        check_against_float64(wrong, mlp)


class Scaled(EagerKernel):
    """Wrong by a thousandth in the columns of one output."""

    output = ""

    def run(self, x, y):
        strategy = super().run(x, y)
        y[:, self.spec.columns(self.output)] *= 1.001
        return strategy


@pytest.mark.parametrize("output", ["big", "small"])
def test_every_output_is_judged_on_its_own_scale(output):
    steps = (
        Linear(name="trunk", input="input", out_features=16),
        Linear(name="big", input="trunk", out_features=5),
        Linear(name="small", input="trunk", out_features=1),
    )
    outputs = (Output(name="big", value="big"), Output(name="small", value="small"))
    spec = MlpSpec(in_features=8, steps=steps, outputs=outputs)
    tensors = random_weights(spec).tensors()
    tensors["big.weight"] *= 1e6
    mlp = models.Mlp(spec, tensors)
    check_against_float64(EagerKernel(mlp, "cpu", None), mlp)
    kernel = Scaled(mlp, "cpu", None)
    kernel.output = output
    with pytest.raises(KernelError, match=f"output '{output}': largest error"):
        check_against_float64(kernel, mlp)


@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
def test_a_wrong_norm_is_found(kind):
    """One that forgets its bias, or computes with another eps."""

    def make(eps, bias):
        steps = (
            Linear(name="fc", input="input", out_features=40),
            Norm(name="norm", input="fc", kind=kind, eps=eps),
            Linear(name="head", input="norm", out_features=4),
        )
        spec = MlpSpec(in_features=12, steps=steps, outputs=(Output(value="head"),))
        tensors = random_weights(spec).tensors()
        tensors["norm.bias"] *= bias
        return models.Mlp(spec, tensors)

    right = make(1e-3, 1.0)
    check_against_float64(EagerKernel(right, "cpu", None), right)
    wrong = [make(1e-3, 0.99)] + (
        [make(1.2e-3, 1.0)] if kind != "l2" else []
    )  # its eps counts near zero only
    for mlp in wrong:
        with pytest.raises(KernelError, match="disagrees"):
            check_against_float64(EagerKernel(mlp, "cpu", None), right)


@pytest.mark.parametrize("seed", range(6))
def test_a_wrong_weight_anywhere_in_a_program_is_found(seed):
    mlp = random_mlp(seed, steps=6, max_width=20, max_outputs=1)
    for name, tensor in list(mlp.tensors().items())[:3]:
        wrong = mlp.tensors()
        wrong[name] = tensor + np.float32(0.5)
        other = models.Mlp(mlp.spec, wrong)
        x = probe_input(mlp)[: max(PROBE_ROWS)].astype(np.float64)
        if np.abs(evaluate(mlp, x) - evaluate(other, x)).max() > 1e-2:  # it matters
            with pytest.raises(KernelError, match="disagrees"):
                check_against_float64(EagerKernel(other, "cpu", None), mlp)


class OnGpu(Off):
    """Says so."""

    def describe(self):
        return replace(super().describe(), device="cuda:0")


def test_kernel_on_a_gpu_is_compared_with_plain_layers_there():
    mlp = random_weights(MlpSpec.of_layers(2048, [LayerSpec(out_features=8)]))
    kernel, eager = OnGpu(mlp, "cpu", None), Off(mlp, "cpu", None)
    eager.up_to_rows = 1_000_000
    kernel.by = eager.by = 2e-5  # as if both summed in long chains
    with pytest.raises(KernelError, match="disagrees"):
        check_against_float64(kernel, mlp)
    check_against_float64(kernel, mlp, lambda: eager)
    kernel.by = eager.by = 1e-3  # no rounding explains that, whatever eager does there
    with pytest.raises(KernelError, match="disagrees"):
        check_against_float64(kernel, mlp, lambda: eager)


def test_plain_layers_on_a_gpu_serve_though_less_exact_than_on_the_cpu(only, caplog):
    build = lambda mlp, threads: OnGpu(mlp, "cpu", threads)  # noqa: E731
    only(Backend("eager", "unfused", "cuda", 0, lambda mlp: None, build))
    kernel = kernels.compile(make_mlp(), variant="unfused", device="cuda")
    assert kernel.describe().device == "cuda:0"
    assert "unfused on cuda:0 serves, less exact than on the CPU" in caplog.text
    only(backend("fused", 1, lambda mlp, threads: OnCpu(mlp, "cpu", threads)))
    with pytest.raises(KernelError, match="disagrees"):
        kernels.compile(make_mlp(), device="cpu")


class OnCpu(Off):
    def describe(self):
        return replace(super().describe(), variant="fused")


def test_device_by_number_is_torchs_current_one_while_the_kernel_is_built(only, monkeypatch):
    entered = []

    @contextmanager
    def use(index):
        entered.append(index)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def build(mlp, threads):
        assert entered == [1]
        return EagerKernel(mlp, "cpu", threads)

    only(backend("triton", 1, build, device="cuda"))
    kernels.compile(make_mlp(), device="cuda:1")
    assert entered == []
    with pytest.raises(KernelUnavailable, match="device: got 'cuda:2', torch sees cuda:0 to cuda:1"):
        kernels.compile(make_mlp(), device="cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(KernelUnavailable, match="device: got 'cuda:0', torch sees no CUDA device"):
        kernels.compile(make_mlp(), device="cuda:0")


# -- the array boundary


@pytest.fixture(scope="module")
def kernel():
    return kernels.compile(make_mlp(), variant="unfused", device="cpu")


def test_numpy_arrays_of_any_layout_are_taken(kernel):
    x = np.random.default_rng(0).standard_normal((6, 4), dtype=np.float32)
    expected = kernel(x)
    assert isinstance(expected, np.ndarray)
    read_only = x.copy()
    read_only.flags.writeable = False
    for same in (read_only, np.asfortranarray(x), x[::-1][::-1], x.astype(np.float64)):
        np.testing.assert_allclose(kernel(same), expected, atol=1e-5)  # eager sums in an order of its own
    np.testing.assert_allclose(kernel(x[::-1]), expected[::-1], atol=1e-5)
    assert kernel(x[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.ones(4), r"input: expected shape \(rows, 4\), got \(4,\)"),
        (torch.ones(2, 5), r"input: expected shape \(rows, 4\), got \(2, 5\)"),
        (torch.ones(2, 4, dtype=torch.int32), "input: expected a float dtype, got torch.int32"),
        (np.ones((2, 4), np.int64), "input: expected a float dtype, got int64"),
        (np.ones((2, 4), ">f4"), "input: expected a float dtype, got >f4"),
        (np.full((2, 4), "a"), "input: expected a float dtype"),
        ([[1.0] * 4], "input: expected a torch tensor or a numpy array, got list"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(kernel, x, text):
    with pytest.raises(KernelInputError, match=text):
        kernel(x)


def test_an_out_that_does_not_fit_is_refused(kernel):
    x = np.ones((2, 4), np.float32)
    with pytest.raises(KernelInputError, match="out has 3 rows, the input 2"):
        kernel(x, np.empty((3, 3), np.float32))
    with pytest.raises(KernelInputError, match=r"out: expected shape \(rows, 3\)"):
        kernel(x, np.empty((2, 4), np.float32))
    frozen = np.empty((2, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(KernelInputError, match="out: expected an array that can be written to"):
        kernel(x, frozen)
