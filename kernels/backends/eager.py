# SPDX-License-Identifier: Apache-2.0
"""The unfused variant: eager modules (nn.Linear, nn.LayerNorm, activations) under inference_mode. The baseline:
exactly what a PyTorch user would run."""

from __future__ import annotations

import torch

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.cuda.running.presence import is_lost, report_lost
from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.torch.steps import ids_of
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES
from fused_mlp.models.importers.torch.writing import make_module


class EagerKernel(Kernel):
    def __init__(self, mlp: Mlp, device: str, threads: int | None) -> None:
        super().__init__(
            mlp.spec,
            KernelInfo(
                variant="unfused",
                backend="eager",
                device=device,
                strategy="layer_by_layer",
                isa=torch.backends.cpu.get_cpu_capability().lower() if device == "cpu" else "cuda",
                # The self-check must then hold eager to TF32's error, not to float32's.
                dtype="tf32" if _in_tf32(mlp, device) else mlp.spec.dtype,
                # torch has one intra-op pool for the whole process; the count is its, not ours.
                threads=torch.get_num_threads(),
            ),
        )
        self._device = device
        self._dtype = TORCH_DTYPES[mlp.spec.dtype]
        self._module = make_module(mlp, joined=True).to(device)

    def run(self, x: Float32, y: Float32) -> str:
        try:
            with torch.inference_mode():
                result = self._module(*self._inputs(torch.from_numpy(x)))
                torch.from_numpy(y).copy_(result)
        except RuntimeError as error:
            if self._device != "cpu" and is_lost(torch.device(self._device)):
                report_lost(self._device, error)
            raise
        return self._info.strategy

    def forward_tensors(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.inference_mode():
            y.copy_(self._module(*self._inputs(x)))

    def _inputs(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What the module takes: the rows, or the fields of a record. Ids do not survive another dtype."""
        return [each.to(self._device) for each in fields_of(self.spec, x, self._dtype)]


def fields_of(spec: MlpSpec, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """The arguments of a joined module: rows, or the fields of records."""
    if not spec.record:
        return [x.to(dtype)]
    parts = [(part.field.kind, x[:, part.start : part.stop]) for part in spec.record]
    return [ids_of(words) if kind == "id" else words.to(dtype) for kind, words in parts]


def _in_tf32(mlp: Mlp, device: str) -> bool:
    return device != "cpu" and mlp.spec.dtype == "float32" and multiplies_in_tf32()


def build_on_cpu(mlp: Mlp, threads: int | None) -> EagerKernel:
    return EagerKernel(mlp, "cpu", threads)


def build_on_cuda(mlp: Mlp, threads: int | None) -> EagerKernel:
    return EagerKernel(mlp, f"cuda:{torch.cuda.current_device()}", threads)
