"""The numeric check every kernel passes before it serves: against float64, its error may be at most twice
that of eager PyTorch in the model's dtype."""

from __future__ import annotations

import numpy as np
import torch

from kernels.base import Float32, Kernel
from kernels.errors import KernelError
from models import Mlp

# Rows of the probe batch: a few full register blocks and a remainder.
PROBE_ROWS = 19
# Two roundings of the output itself: where eager happens to be exact, a kernel that rounds once more
# than eager does must still pass.
FLOOR_EPS = 4.0


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
    with torch.inference_mode():
        eager = module(tensor.to(dtype)).double().numpy()
        exact = module.double()(tensor.to(dtype).double()).numpy()
    y = np.empty((x.shape[0], mlp.spec.out_features), np.float32)
    kernel.run(x, y)

    finite = np.isfinite(exact)
    scale = float(np.max(np.abs(exact), initial=0.0, where=finite))
    allowed = 2.0 * _largest(eager - exact, finite) + FLOOR_EPS * torch.finfo(dtype).eps * scale
    error = _largest(y.astype(np.float64) - exact, finite)
    if not error <= allowed:  # NaN must fail too
        raise KernelError(
            f"{kernel.describe().backend} kernel disagrees with the float64 reference: "
            f"largest error {error:.3g}, allowed {allowed:.3g}"
        )


def _largest(
    difference: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> float:
    values = np.abs(difference[where])
    return float(np.max(values, initial=0.0)) if not np.isnan(values).any() else float("nan")
