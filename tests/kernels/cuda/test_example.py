# SPDX-License-Identifier: Apache-2.0
"""The hand-written CUDA kernel where there is no GPU: it compiles, computes (its PTX is executed), what it is launched
with, what it refuses."""

from __future__ import annotations

import ctypes
import re
import subprocess

import pytest
import torch

from fused_mlp.kernels.cuda.example import compiling
from fused_mlp.kernels.cuda.example.compiling import SOURCE, compile_example, find_nvcc
from fused_mlp.kernels.cuda.example.program import ExampleProgram, unsuitable
from fused_mlp.kernels.cuda.planning.architectures import CAPABILITIES
from fused_mlp.kernels.errors import KernelError
from fused_mlp.models import Mlp
from fused_mlp.models.program.evaluation import evaluate
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.ptx import Memory
from tests.support.ptx import run as execute

needs_nvcc = pytest.mark.skipif(
    find_nvcc() is None, reason="nvcc is not found: the CUDA toolkit compiles the example"
)
SPEC = make_spec((20, 70, 65), "gelu", dtype="float16")


@needs_nvcc
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_it_compiles_without_spilling_and_uses_tensor_cores(capability: int, tmp_path) -> None:
    # nvcc starts three compilers: both kinds of result from one run.
    command = [
        find_nvcc(),
        "-cubin",
        f"-arch=sm_{capability}",
        "-std=c++17",
        "-Xptxas",
        "-v",
        "--keep",
        str(SOURCE),
    ]
    report = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in report
    assert re.search(rb"w?mma\.[\w.]*sync", (tmp_path / "fused_mlp.ptx").read_bytes())


@needs_nvcc
def test_its_machine_code_is_an_object_file() -> None:
    assert compile_example(90)[:4] == b"\x7fELF"


def test_missing_and_failing_compilers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    compile_example.cache_clear()
    monkeypatch.setattr(compiling, "find_nvcc", lambda: None)
    with pytest.raises(KernelError, match="nvcc is not found: install the CUDA toolkit"):
        compile_example(80)
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho no such architecture >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(compiling, "find_nvcc", lambda: str(broken))
    with pytest.raises(
        KernelError, match=r"nvcc could not compile fused_mlp.cu for sm_80: no such architecture"
    ):
        compile_example(80)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (SPEC, None),
        (make_spec((20, 70, 65), "gelu"), "the example computes in float16, this model is in float32"),
        (make_spec((20, 70, 65), "relu", dtype="float16"), "linear, gelu, linear only"),
        (make_spec((20, 70, 65), "gelu", gated=(True, False), dtype="float16"), "linear, gelu, linear only"),
        (make_spec((20, 70, 8, 65), "gelu", dtype="float16"), "linear, gelu, linear only"),
        (make_spec((20, 70, 65), "gelu", output="softmax", dtype="float16"), "linear, gelu, linear only"),
    ],
)
def test_it_says_which_models_it_runs(spec, why: str | None) -> None:
    found = unsuitable(spec)
    assert (found is None) == (why is None)
    assert why is None or why in (found or "")


def test_arguments_are_those_that_the_kernel_declares() -> None:
    program = ExampleProgram(make_mlp(SPEC), torch.device("cpu"), b"")
    declared = re.search(r"fused_mlp\((.*?)\) \{", SOURCE.read_text(), re.DOTALL)
    assert declared is not None
    names = [each.split()[-1] for each in declared[1].split(",")]
    assert names == [
        "x",
        "w1",
        "b1",
        "w2",
        "b2",
        "y",
        "rows",
        "in",
        "in_padded",
        "hidden",
        "hidden_padded",
        "out",
    ]
    arguments = dict(zip(names, program.arguments(32, 64, 17), strict=True))
    kinds = {name: type(value) for name, value in arguments.items()}
    assert {name for name, kind in kinds.items() if kind is ctypes.c_void_p} == {
        "x",
        "w1",
        "b1",
        "w2",
        "b2",
        "y",
    }
    numbers = {name: value.value for name, value in arguments.items() if kinds[name] is ctypes.c_int}
    assert numbers == {"rows": 17, "in": 20, "in_padded": 32, "hidden": 70, "hidden_padded": 128, "out": 65}
    assert [tuple(tensor.shape) for tensor in program.tensors] == [(128, 32), (128,), (128, 128), (128,)]
    assert program.grid(17) == (2, 2)


def run(program: ExampleProgram, x: torch.Tensor, capability: int = 80) -> torch.Tensor:
    """What nvcc made of it, executed by our interpreter of PTX."""
    y = torch.full((x.shape[0], program.widths[2]), torch.nan)
    arguments = program.arguments(x.data_ptr(), y.data_ptr(), x.shape[0])
    memory = Memory()
    for tensor in (x, *program.tensors, y):
        memory.add_host(tensor.data_ptr(), tensor.nbytes)
    ptx = compile_example(capability, "ptx").decode()
    grid, block = (*program.grid(x.shape[0]), 1), (compiling.THREADS, 1, 1)
    execute(ptx, compiling.NAME, grid, block, 0, b"".join(bytes(each) for each in arguments), memory)
    return y


@needs_nvcc
@pytest.mark.parametrize("capability", [80, 100])  # wmma is two different sets of instructions
@pytest.mark.parametrize("widths", [(20, 70, 65), (16, 64, 64), (1, 1, 1), (100, 130, 10)])
def test_it_computes_what_eager_does_row_by_row(widths: tuple[int, ...], capability: int) -> None:
    mlp = make_mlp(make_spec(widths, "gelu", dtype="float16"))
    program = ExampleProgram(mlp, torch.device("cpu"), b"")
    x = torch.randn(19, widths[0], generator=torch.Generator().manual_seed(0)).half().float()
    y = run(program, x, capability)
    exact = torch.from_numpy(evaluate(mlp, x.double().numpy()))
    with torch.inference_mode():
        eager = mlp.to_torch()(x.half()).double()
    allowed = 2 * (eager - exact).abs().max() + 4 * torch.finfo(torch.float16).eps * exact.abs().max()
    assert (y.double() - exact).abs().max() <= allowed
    for rows in (slice(0, 1), slice(3, 19)):
        assert torch.equal(run(program, x[rows].clone(), capability), y[rows])


@needs_nvcc
def test_infinity_in_a_row_stays_there_and_does_not_pass_through_padding() -> None:
    spec = make_spec((3, 5, 2), "gelu", dtype="float16")
    tensors = {name: abs(array) for name, array in make_mlp(spec).tensors().items()}
    program = ExampleProgram(Mlp(spec, tensors), torch.device("cpu"), b"")
    x = torch.ones(3, 3)
    x[1, 2] = torch.inf
    y = run(program, x)
    assert (y[1] == torch.inf).all()
    assert torch.equal(y[0], y[2])
    assert torch.isfinite(y[0]).all()
