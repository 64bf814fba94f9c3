"""Where compiled CUDA kernels are kept. Imports no torch: the setting is given before anything is compiled."""

from __future__ import annotations

import os

CACHE_VARIABLE = "FUSED_MLP_KERNEL_CACHE"


def use_kernel_cache(directory: str | os.PathLike[str] | None = None) -> None:
    """Where compiled kernels are kept, from now on: the directory given, or FUSED_MLP_KERNEL_CACHE, if set,
    becomes Triton's."""
    chosen = directory or os.environ.get(CACHE_VARIABLE)
    if chosen:
        os.environ[CACHE_VARIABLE] = os.environ["TRITON_CACHE_DIR"] = os.fspath(chosen)
