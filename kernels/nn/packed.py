# SPDX-License-Identifier: Apache-2.0
"""Packed kernels of weights that live elsewhere and may change: found by the memory of the weights, packed again when
their version counters change. Safe to call from any thread."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fused_mlp.kernels.backends.cpu import CpuKernel
from fused_mlp.kernels.base import Kernel
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.kernels.registry import compile  # noqa: A004 - as everywhere
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES, to_array
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.mlp import expected_shapes

_DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_Addresses = tuple[int, ...]


@dataclass(frozen=True)
class _Packed:
    """A kernel and the state of the weights it was packed from. The references are weak: they keep no weights
    alive, but tell whether an address still means the same memory."""

    kernel: Kernel
    threads: int
    versions: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]

    def is_of(self, versions: tuple[int, ...], threads: int) -> bool:
        return self.versions == versions and self.threads == threads and not self.expired

    @property
    def expired(self) -> bool:
        return any(storage.expired() for storage in self.storages)  # type: ignore[no-untyped-call]


_Strides = tuple[tuple[int, ...], ...]  # a square matrix and its transpose have one address
_PACKED: dict[tuple[str, str, int, _Strides, _Addresses], _Packed] = {}
_LOCK = threading.Lock()
atexit.register(_PACKED.clear)  # compiled objects must not outlive the interpreter


def _count_fused_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Optimizers with fused=True write to their parameters without counting it, all others do."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])


register_optimizer_step_post_hook(_count_fused_step)


@lru_cache(maxsize=256)
def parse_spec(text: str) -> MlpSpec:
    return MlpSpec.model_validate_json(text)


def addresses_and_versions(weights: Sequence[Tensor]) -> tuple[_Addresses, tuple[int, ...]]:
    """Addresses change when weights are replaced, versions when they are written to."""
    try:
        return tuple([w.data_ptr() for w in weights]), tuple([w._version for w in weights])
    except RuntimeError as error:
        if not any(w.is_inference() for w in weights):
            raise
        raise KernelInputError(
            "weights made under torch.inference_mode() have no version counter, so that their changes would not be "
            "seen: make the module outside of it"
        ) from error


def threads_of_torch(weights: Sequence[Tensor]) -> int:
    """As many as torch.set_num_threads says, at most one per core; 0 where the kernel has no threads."""
    return min(torch.get_num_threads(), usable_cores()) if weights[0].is_cpu else 0


def kernel_for(weights: Sequence[Tensor], spec: str, backend: str, threads: int) -> Kernel:
    """The kernel for these weights as they are now. `spec`: an MlpSpec as JSON; `threads` 0 for those of torch."""
    addresses, versions = addresses_and_versions(weights)
    # One kernel that follows torch, not one for each number of threads.
    key = (spec, backend, threads, tuple([w.stride() for w in weights]), addresses)
    threads = threads or threads_of_torch(weights)
    found = _PACKED.get(key)
    if found is not None and found.is_of(versions, threads):
        return found.kernel
    with _LOCK:
        forget_expired()
        found = _PACKED.get(key)
        if found is None:
            kernel = _compile(weights, spec, backend, threads)
        elif found.is_of(versions, threads):  # another thread was faster
            return found.kernel
        elif isinstance(found.kernel, CpuKernel) and found.threads == threads:
            kernel = found.kernel.repacked(_by_name(parse_spec(spec), weights))
        else:
            kernel = _compile(weights, spec, backend, threads)
        storages = [StorageWeakRef(w.untyped_storage()) for w in weights]  # type: ignore[no-untyped-call]
        _PACKED[key] = _Packed(kernel, threads, versions, tuple(storages))
        return kernel


def forget(weights: Sequence[Tensor]) -> None:
    """Have these weights packed again, whatever their version counters say."""
    addresses = tuple(weight.data_ptr() for weight in weights)
    for key in [key for key in list(_PACKED) if key[-1] == addresses]:
        _PACKED.pop(key, None)


def forget_expired() -> None:
    """Drop the kernels whose weights are gone."""
    for key in [key for key, packed in list(_PACKED.items()) if packed.expired]:
        _PACKED.pop(key, None)


def _compile(weights: Sequence[Tensor], text: str, backend: str, threads: int) -> Kernel:
    spec = parse_spec(text).model_copy(update={"dtype": _DTYPE_NAMES[weights[0].dtype]})
    mlp = Mlp(spec, _by_name(spec, weights))
    # Not torch.inference_mode: its tensors could not be written to outside of it, and a kernel outlives the call.
    with torch.inference_mode(False), torch.no_grad():
        return compile(mlp, device=str(weights[0].device), backend=backend, threads=threads or None)


def _by_name(spec: MlpSpec, weights: Sequence[Tensor]) -> dict[str, Array]:
    return {
        name: np.ascontiguousarray(to_array(tensor, name))
        for name, tensor in zip(expected_shapes(spec), weights, strict=True)
    }
