"""The numeric check every kernel passes before it serves: against float64, its error may be at most twice
that of eager PyTorch in the model's dtype."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from kernels.base import Float32, Kernel
from kernels.errors import KernelError
from models import Mlp

# Rows of the probe batch: a few full register blocks and a remainder.
PROBE_ROWS = 19
# Two roundings of the output itself: where eager happens to be exact, a kernel that rounds once more
# than eager does must still pass.
FLOOR_EPS = 4.0

# A kernel that says "tf32" multiplies float32 with 10 explicit bits of mantissa, as eager does on request.
TF32_EPS = 2.0**-10


def probe_input(mlp: Mlp) -> Float32:
    """Deterministic rows that reach both tails of every activation: (PROBE_ROWS, in_features)."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((PROBE_ROWS, mlp.spec.in_features), dtype=np.float32)
    x[1] = 0.0
    x[2] *= 8.0
    return x


def check_against_float64(kernel: Kernel, mlp: Mlp) -> None:
    """Raise KernelError when the kernel's largest error is more than twice that of eager."""
    x = probe_input(mlp)
    module = mlp.to_torch()
    tensor = torch.from_numpy(x)
    dtype = next(module.parameters()).dtype
    eps = torch.finfo(dtype).eps
    with torch.inference_mode():
        if kernel.describe().dtype == "tf32":
            eps, baseline = TF32_EPS, _multiplying_in_tf32(mlp.to_torch())
        else:
            baseline = module
        eager = baseline(tensor.to(dtype)).double().numpy()
        exact = module.double()(tensor.to(dtype).double()).numpy()
    y = np.empty((x.shape[0], mlp.spec.out_features), np.float32)
    kernel.run(x, y)

    finite = np.isfinite(exact)
    scale = float(np.max(np.abs(exact), initial=0.0, where=finite))
    allowed = 2.0 * _largest(eager - exact, finite) + FLOOR_EPS * eps * scale
    error = _largest(y.astype(np.float64) - exact, finite)
    if not error <= allowed:  # NaN must fail too
        raise KernelError(
            f"{kernel.describe().backend} kernel disagrees with the float64 reference: "
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


def _largest(
    difference: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> float:
    values = np.abs(difference[where])
    return float(np.max(values, initial=0.0)) if not np.isnan(values).any() else float("nan")
