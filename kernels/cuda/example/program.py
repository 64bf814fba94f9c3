# SPDX-License-Identifier: Apache-2.0
"""The example as a program: what it can run, its weights on the device, and its launch through the CUDA driver."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.driver_library import load_driver
from fused_mlp.kernels.cuda.example.compiling import (
    HIDDEN,
    NAME,
    OUT_TILE,
    ROWS,
    THREADS,
    K,
    compile_example,
)
from fused_mlp.kernels.cuda.planning.whole_steps import pad
from fused_mlp.kernels.cuda.running.program import Allocate
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.torch.tensors import to_tensor
from fused_mlp.models.program.spec import Elementwise, Linear


def unsuitable(spec: MlpSpec) -> str | None:
    """Why the example cannot run the program, or None: it is linear, GELU, linear in float16."""
    steps = spec.steps
    if spec.dtype != "float16":
        return f"the example computes in float16, this model is in {spec.dtype}"
    if len(steps) == 3 and len(spec.outputs) == 1:
        first, function, last = steps
        if (
            isinstance(first, Linear)
            and isinstance(function, Elementwise)
            and function.formula.text == "gelu"
            and isinstance(last, Linear)
            and (function.input, last.input) == (first.name, function.name)
            and spec.outputs[0].value == last.name
        ):
            return None
    return f"the example runs linear, gelu, linear only, this model is {spec.summary()}"


class ExampleProgram:
    label = "example"
    launches = 1
    any_rows = True

    def __init__(self, mlp: Mlp, device: torch.device, cubin: bytes | None = None) -> None:
        first, _, last = mlp.spec.steps
        assert isinstance(first, Linear)
        assert isinstance(last, Linear)
        self.widths = mlp.spec.in_features, first.out_features, last.out_features
        in_padded, hidden_padded = pad(self.widths[0], K), pad(self.widths[1], HIDDEN)
        self.padded = in_padded, hidden_padded, pad(self.widths[2], OUT_TILE)
        w1, b1 = _pack(mlp, first, hidden_padded, in_padded)
        w2, b2 = _pack(mlp, last, self.padded[2], hidden_padded)
        self.tensors = [tensor.to(device) for tensor in (w1, b1, w2, b2)]
        if cubin is None:
            major, minor = torch.cuda.get_device_capability(device)
            cubin = compile_example(10 * major + minor)
        self._cubin = cubin
        self._function: Any = None

    @property
    def memory_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return ()

    def grid(self, rows: int) -> tuple[int, int]:
        """Blocks of rows, and of columns."""
        return -(-rows // ROWS), self.padded[2] // OUT_TILE

    def arguments(self, x: int, y: int, rows: int) -> list[Any]:
        """As the kernel declares them, for addresses of x and y."""
        pointers = [x, *(tensor.data_ptr() for tensor in self.tensors), y]
        (inputs, hidden, outputs), (in_padded, hidden_padded, _) = self.widths, self.padded
        numbers = [rows, inputs, in_padded, hidden, hidden_padded, outputs]
        return [*map(ctypes.c_void_p, pointers), *map(ctypes.c_int, numbers)]

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        driver = load_driver()
        if self._function is None:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            _check(driver.cuModuleLoadData(ctypes.byref(module), self._cubin))
            _check(driver.cuModuleGetFunction(ctypes.byref(function), module, NAME.encode()))
            self._function = function
        arguments = self.arguments(x.data_ptr(), y.data_ptr(), rows)
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream(x.device).cuda_stream)
        row_blocks, column_blocks = self.grid(rows)
        _check(
            driver.cuLaunchKernel(
                self._function, row_blocks, column_blocks, 1, THREADS, 1, 1, 0, stream, addresses, None
            )
        )


def _pack(mlp: Mlp, step: Linear, n: int, k: int) -> tuple[Tensor, Tensor]:
    """The matrix as (n, k) float16 and the bias as (n,) float32, zero-padded."""
    weight, bias = mlp.tensor(step, "weight"), mlp.tensor(step, "bias")
    assert weight is not None
    matrix, vector = torch.zeros((n, k), dtype=torch.float16), torch.zeros(n)
    matrix[: weight.shape[0], : weight.shape[1]] = to_tensor(weight)
    if bias is not None:
        vector[: bias.shape[0]] = to_tensor(bias).float()
    return matrix, vector


def _check(status: int) -> None:
    if status != 0:
        name = ctypes.c_char_p()
        load_driver().cuGetErrorName(status, ctypes.byref(name))
        raise RuntimeError(f"CUDA driver: {(name.value or b'?').decode()}")
