# SPDX-License-Identifier: Apache-2.0
"""Bounds what torch operators may allocate: each one runs on meta tensors first, which have sizes but no memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fused_mlp.models.errors import ModelLoadError

# Values in one result that is larger than all arguments, and in all such results together.
MAX_VALUES = 1 << 26
_MAX_TOTAL = 2 * MAX_VALUES
# Bytes of all results that are alive: so many, and this many times those of the tensors that were not computed.
_MAX_HELD, _MAX_COPIES = 512 << 20, 4
# Their result depends on values, so that they cannot run on meta tensors. It has at most as many as the arguments.
_BY_VALUE = ("aten::index", "aten::nonzero", "aten::masked_select", "aten::_local_scalar_dense")


class bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]  # noqa: N801 - used as a context manager
    """May be entered again: what is alive counts on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._total = 0
        self._given: dict[int, int] = {}  # bytes by storage, of tensors that no operator made
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self._made_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        given = _storages((args, options))
        self._given |= {key: each.nbytes() for key, each in given.items() if key not in self._made}
        self._check(func, args, options)
        made = func(*args, **options)
        for key, each in _storages(made).items():
            if key not in given and key not in self._made:
                self._made[key] = (StorageWeakRef(each), each.nbytes())  # type: ignore[no-untyped-call]
                self._made_bytes += each.nbytes()
        return made

    def _check_held(self, func: Any, more: int) -> None:
        if self._made_bytes + more <= _MAX_HELD:
            return
        most = _MAX_HELD + _MAX_COPIES * sum(self._given.values())
        if self._made_bytes + more > most:
            self._made = {
                key: each
                for key, each in self._made.items()
                if not each[0].expired()  # type: ignore[no-untyped-call]
            }
            self._made_bytes = sum(size for _, size in self._made.values())
        if self._made_bytes + more > most:
            name = func._schema.name.partition("::")[2]
            raise ModelLoadError(f"{name}: results of more than {most} bytes are alive, too much for an MLP")

    def _check(self, func: Any, args: Any, options: dict[str, Any]) -> None:
        if func is torch.ops.aten.repeat_interleave.Tensor:
            _check_counts(args[0])
        on_meta = {**tree_map(_without_values, options)}
        if any(argument.name == "device" for argument in func._schema.arguments):
            on_meta["device"] = torch.device("meta")
        meta_args = tree_map(_without_values, args)
        try:
            results = func(*meta_args, **on_meta)
            given_storages, new = _storages((meta_args, on_meta)), _storages(results)
            self._check_held(func, sum(new[key].nbytes() for key in new.keys() - given_storages.keys()))
            made = tree_leaves(results)
        except (NotImplementedError, RuntimeError):
            if func._schema.name in _BY_VALUE:
                return
            raise
        given = max(
            (each.numel() for each in tree_leaves((args, options)) if isinstance(each, Tensor)), default=0
        )
        sizes = [each.numel() for each in made if isinstance(each, Tensor)]
        if not sizes or max(sizes) <= given:
            return
        self._total += sum(sizes)
        if max(sizes) > MAX_VALUES or self._total > _MAX_TOTAL:
            name = func._schema.name.partition("::")[2]
            raise ModelLoadError(
                f"{name}: its result has {max(sizes)} values: expected at most {MAX_VALUES} for the tensors of an MLP"
            )


def _check_counts(counts: Tensor) -> None:
    """torch writes as many entries as each count says, and compares only their sum with the size of the result."""
    if counts.numel() and not 0 <= int(counts.min()) <= int(counts.max()) <= MAX_VALUES:
        raise ModelLoadError(f"repeat_interleave: expected counts from 0 to {MAX_VALUES}")


def _storages(values: Any) -> dict[int, torch.UntypedStorage]:
    tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor))
    found = [each.untyped_storage() for each in tensors if each.layout == torch.strided]
    return {each._cdata: each for each in found}


def _without_values(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value
