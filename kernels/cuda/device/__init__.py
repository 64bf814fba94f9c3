# SPDX-License-Identifier: Apache-2.0
"""The code that runs on the GPU, in Triton's dialect of Python."""

from typing import Any

from fused_mlp.kernels.cuda.device.gather_kernel import gather_kernel
from fused_mlp.kernels.cuda.device.layer_kernel import layer_kernel
from fused_mlp.kernels.cuda.device.row_kernel import row_kernel
from fused_mlp.kernels.cuda.device.split_kernels import join_kernel, part_kernel
from fused_mlp.kernels.cuda.device.whole_kernel import whole_kernel
from fused_mlp.kernels.cuda.planning.plans import KernelName

KERNELS: dict[KernelName, Any] = {
    "gather": gather_kernel,
    "whole": whole_kernel,
    "layer": layer_kernel,
    "row": row_kernel,
    "part": part_kernel,
    "join": join_kernel,
}
