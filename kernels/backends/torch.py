# SPDX-License-Identifier: Apache-2.0
"""The fused variant in plain PyTorch, for places where no compiled kernel can be had: the program in torch's operators,
without modules, in float32 whatever the model's dtype. Not batch-invariant to the bit: MKL chooses its blocking, and so
its order of summation, by batch size."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.kernels.nn.reference import forward_named
from fused_mlp.models import Mlp
from fused_mlp.models.weights.dtypes import widen


class TorchKernel(Kernel):
    """Closer to the exact result than eager in half precision, and faster on CPUs that have no arithmetic for it."""

    def __init__(self, mlp: Mlp, threads: int | None) -> None:
        # torch has one intra-op pool for the whole process; the count is its, not ours.
        count = torch.get_num_threads()
        other = threads not in (None, count)
        super().__init__(
            mlp.spec,
            KernelInfo(
                variant="fused",
                backend="torch",
                device="cpu",
                strategy="layer_by_layer",
                isa=torch.backends.cpu.get_cpu_capability(),
                dtype="float32",
                threads=count,
                reason=f"torch's own pool has {count} threads, not {threads}" if other else "",
            ),
        )
        self._tensors = {name: torch.from_numpy(widen(tensor)) for name, tensor in mlp.tensors().items()}

    def run(self, x: Float32, y: Float32) -> str:
        self.forward_tensors(torch.from_numpy(x), torch.from_numpy(y))
        return self._info.strategy

    def forward_tensors(self, x: Tensor, y: Tensor) -> None:
        with torch.inference_mode():
            y.copy_(forward_named(x.detach().to("cpu", torch.float32), self._tensors, self.spec))
