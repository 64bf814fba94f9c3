# SPDX-License-Identifier: Apache-2.0
"""How the CUDA backends behave where there is no GPU or no triton."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fused_mlp import kernels
from fused_mlp.kernels import KernelInfo, KernelUnavailable
from fused_mlp.kernels.backends.eager import EagerKernel
from fused_mlp.kernels.cuda import backend
from fused_mlp.kernels.cuda.backend import triton_unavailable
from fused_mlp.kernels.cuda.check.models import ranker
from fused_mlp.kernels.cuda.driver_library import has_driver, load_driver
from fused_mlp.kernels.cuda.running.selection import Candidate
from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32
from fused_mlp.kernels.selfcheck import check_against_float64
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.steps import Bucketize, Number
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.models.weights.quantization import Precision
from tests.kernels.cuda.cpu_runtime import CpuRuntime
from tests.kernels.cuda.eager_program import EagerProgram
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support import fake_cuda
from tests.support.random_programs import random_weights

ROOT = Path(__file__).parents[3]
MLP = make_mlp(make_spec((4, 8, 2)))
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this is about machines without a GPU")


def test_kernels_imports_and_lists_cuda_backends_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; from fused_mlp import kernels; "
        "print([b.name for b in kernels.backends('fused', 'cuda')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "['triton', 'cublas', 'cuda-example']"


@pytest.mark.parametrize(("library", "found"), [("fake", True), ("/nowhere/libcuda.so", False)])
def test_driver_that_the_environment_names_is_the_one_looked_for(
    monkeypatch: pytest.MonkeyPatch, library: str, found: bool
) -> None:
    monkeypatch.setenv("FUSED_MLP_LIBCUDA", str(fake_cuda.library()) if library == "fake" else library)
    load_driver.cache_clear()
    try:
        assert has_driver() == found
    finally:
        load_driver.cache_clear()


@needs_no_gpu
@pytest.mark.parametrize("name", ["triton", "cublas", "cuda-example"])
def test_backend_asked_for_by_name_says_why_it_cannot_run(name: str) -> None:
    with pytest.raises(
        KernelUnavailable, match=f"backend '{name}': torch sees no CUDA device; usable here: none"
    ):
        kernels.compile(MLP, device="cuda", backend=name)


def test_missing_triton_and_old_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install triton" in (triton_unavailable(MLP) or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert triton_unavailable(MLP) == "no tiles for compute capability 7.5: expected 8.x, 9.x, 10.x or 12.x"


@pytest.mark.parametrize(
    ("found", "old"), [("3.4.0", True), ("3.5.1", False), ("4.0.0+git1", False), ("?", False)]
)
def test_triton_that_cannot_compile_the_kernels_is_named(
    monkeypatch: pytest.MonkeyPatch, found: str, old: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(backend, "version", lambda name: found)
    said = f"triton: expected 3.5 or newer, which comes with torch 2.9, got {found}" if old else None
    assert triton_unavailable(MLP) == said


def test_cache_that_nothing_can_be_loaded_from_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "made" / "yet"))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert f"Triton's cache {tmp_path}/not/made/yet is on a file system mounted noexec" in (
        triton_unavailable(MLP) or ""
    )


def test_lookups_run_on_gpus_and_other_steps_of_ids_only_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    looked_up = random_weights(ranker("float32"))
    bucketize = Bucketize(name="id", input="input", count=3)
    others = random_weights(MlpSpec(in_features=2, steps=(bucketize, Number(name="n", input="id"))))
    of_gpus = {each.name: each.unavailable for each in kernels.backends(device="cuda")}
    assert of_gpus["cublas"](looked_up) is None
    assert of_gpus["cublas"](others) == "it has no bucketize, which step 'id' is"
    assert of_gpus["eager"](others) is None


def test_a_driver_beside_a_torch_that_is_not_imported_yet_is_asked_through_torch() -> None:
    code = "from fused_mlp.kernels import registry; print(registry.default_device())"
    environment = {**os.environ, "FUSED_MLP_LIBCUDA": str(fake_cuda.library()), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    assert (done.stdout.strip(), done.stderr) == ("cpu", "")


@pytest.fixture
def tf32_off() -> Iterator[None]:
    """Torch's switch is the whole process's: put it back."""
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.usefixtures("tf32_off")
def test_tf32_is_switched_for_gpus_only_and_left_alone_unless_asked_for() -> None:
    assert not multiplies_in_tf32()
    kernels.compile(MLP, device="cpu", tf32=True)
    assert multiplies_in_tf32()
    assert torch.backends.mkldnn.matmul.fp32_precision != "tf32"
    assert kernels.compile(MLP, variant="unfused", device="cpu").describe().dtype == "float32"
    assert multiplies_in_tf32()
    kernels.compile(MLP, device="cpu", tf32=False)
    assert not multiplies_in_tf32()


@pytest.mark.usefixtures("tf32_off")
@pytest.mark.parametrize("switch", ["legacy", "by name"])
def test_tf32_switched_on_through_torch_is_seen(switch: str) -> None:
    if switch == "legacy":
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert multiplies_in_tf32()


def test_tf32_is_read_from_an_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.9 there is no `fp32_precision`."""
    for on in (False, True):
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=on))
        assert multiplies_in_tf32() == on


class Rounded(EagerKernel):
    """Multiplies with weights of `bits` of mantissa; biases are added as they are."""

    def __init__(self, mlp: Mlp, bits: int, says: str) -> None:
        super().__init__(mlp, "cpu", None)
        self._info = KernelInfo("fused", "triton", "cuda", "whole/16", "sm_80", says, 1)
        for parameter in self._module.parameters():
            if parameter.dim() == 1:
                continue
            scale = torch.exp2(torch.floor(torch.log2(parameter.abs())) - bits)
            parameter.copy_(torch.round(parameter / scale) * scale)


@pytest.mark.parametrize("widths", [(4, 8, 2), (64, 128, 64, 10), (32, 1), (300, 200, 10)])
def test_tf32_kernel_is_held_to_eagers_error_in_tf32(widths: tuple[int, ...]) -> None:
    for seed in range(4):
        mlp = make_mlp(make_spec(widths), seed)
        check_against_float64(Rounded(mlp, 10, "tf32"), mlp)
        with pytest.raises(kernels.KernelError, match="disagrees"):
            check_against_float64(Rounded(mlp, 6, "tf32"), mlp)
        with pytest.raises(kernels.KernelError, match="disagrees"):
            check_against_float64(Rounded(mlp, 10, "float32"), mlp)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[Mlp]:
    """cublas on a double of the runtime, with eager layers: its own products are not batch-invariant on a CPU. Holds
    the models that were run."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(backend, "_runtime", CpuRuntime)
    made: list[Mlp] = []

    def candidate(mlp: Mlp, _: torch.device) -> Candidate:
        made.append(mlp)
        return Candidate("cublas", lambda: EagerProgram(mlp))

    monkeypatch.setattr(backend, "_cublas_candidate", candidate)
    return made


@pytest.mark.parametrize(
    ("precision", "says"),
    [("int8", "int8 weights, dequantised to bfloat16; "), ("bfloat16", "bfloat16 weights, in bfloat16; ")],
)
def test_weights_in_fewer_bits_run_in_bfloat16_and_say_so(
    on_cpu: list[Mlp], precision: Precision, says: str
) -> None:
    mlp = to_precision(make_mlp(make_spec((40, 64, 10))), precision)
    kernel = backend.build_cublas(mlp)
    (ran,) = on_cpu
    assert (ran.spec.dtype, dict(ran.reduced)) == ("bfloat16", {})
    info = kernel.describe()
    assert info.dtype == "bfloat16"
    assert info.reason.startswith(says)
    check_against_float64(kernel, mlp)  # as the registry does, with the model that was asked for


def test_bfloat16_version_with_layers_in_float32_keeps_them(on_cpu: list[Mlp]) -> None:
    mlp = make_mlp(make_spec((40, 64, 10)))
    mixed = to_precision(mlp, "bfloat16", keep=frozenset({mlp.spec.steps[0].name}))
    for given in (mlp, mixed):
        info = backend.build_cublas(given).describe()
        assert info.dtype == "float32"
        assert "weights" not in info.reason
    assert [ran.spec.dtype for ran in on_cpu] == ["float32", "float32"]
