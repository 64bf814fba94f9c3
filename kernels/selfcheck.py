"""The numeric check every kernel passes before it serves: against float64, its error may be at most twice
that of eager PyTorch in the model's dtype."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fused_mlp.kernels.base import Float32, Kernel
from fused_mlp.kernels.errors import KernelRefuted
from fused_mlp.models import Mlp
from fused_mlp.models.weights import TORCH_DTYPES

# Batches probed: kernels choose a strategy by rows, and each has to be right. 19 is a few full register blocks
# and a remainder.
PROBE_ROWS = (19, 5, 1)
# Eager's largest error is looked for among at least so many outputs: among the 19 of a model with one output it
# may happen to be next to nothing, and every right kernel would look wrong beside it.
BASELINE_OUTPUTS = 1024
# Two roundings of the output itself: where eager happens to be exact, a kernel that rounds once more
# than eager does must still pass.
FLOOR_EPS = 4.0

# A kernel that says "tf32" multiplies float32 with 10 explicit bits of mantissa, as eager does on request.
TF32_EPS = 2.0**-10


def probe_input(mlp: Mlp) -> Float32:
    """Deterministic rows that reach both tails of every activation: (rows, in_features). All of them are eager's, for
    its error; the kernel gets the first few. Rounded to the model's dtype, so that both start from the same values."""
    rng = np.random.default_rng(0)
    most = max(PROBE_ROWS)
    rows = max(most, -(-BASELINE_OUTPUTS // mlp.spec.out_features))
    x = rng.standard_normal((rows, mlp.spec.in_features), dtype=np.float32)
    x[1::most] = 0.0
    x[2::most] *= 8.0
    return torch.from_numpy(x).to(TORCH_DTYPES[mlp.spec.dtype]).float().numpy()


def check_against_float64(kernel: Kernel, mlp: Mlp) -> None:
    """Raise KernelRefuted when the kernel's largest error is more than twice that of eager."""
    x = probe_input(mlp)
    module = mlp.to_torch()
    dtype = TORCH_DTYPES[mlp.spec.dtype]
    eps = torch.finfo(dtype).eps
    with torch.inference_mode():
        if kernel.describe().dtype == "tf32":
            eps, baseline = TF32_EPS, _multiplying_in_tf32(mlp.to_torch())
        else:
            baseline = module
        eager = baseline(torch.from_numpy(x).to(dtype)).double().numpy()
        exact = module.double()(torch.from_numpy(x).double()).numpy()

    # Where half precision overflows in eager there is no error to compare with.
    comparable = np.isfinite(exact) & np.isfinite(eager)
    scale = float(np.max(np.abs(exact), initial=0.0, where=comparable))
    allowed = 2.0 * _largest(eager - exact, comparable) + FLOOR_EPS * eps * scale
    for rows in PROBE_ROWS:
        y = np.full((rows, mlp.spec.out_features), np.nan, np.float32)
        kernel.run(x[:rows], y)
        error = _largest(y.astype(np.float64) - exact[:rows], comparable[:rows])
        if not error <= allowed:  # NaN must fail too
            raise KernelRefuted(
                f"{kernel.describe().backend} kernel disagrees with the float64 reference at {rows} rows: "
                f"largest error {error:.3g}, allowed {allowed:.3g}"
            )


def _multiplying_in_tf32(module: nn.Module) -> nn.Module:
    """Eager as CUDA runs it with TF32 on: the operands of every product rounded, the sum in float32."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(_round_to_tf32(layer.weight))
            layer.register_forward_pre_hook(lambda _, arguments: _round_to_tf32(arguments[0]))
    return module


def _round_to_tf32(values: torch.Tensor) -> torch.Tensor:
    """To nearest; adding half of the last kept bit to the integer image may carry into the exponent, as it
    should."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _largest(difference: NDArray[np.float64], where: NDArray[np.bool_]) -> float:
    """The largest magnitude; NaN if there is one."""
    return float(np.max(np.abs(difference), initial=0.0, where=where))
