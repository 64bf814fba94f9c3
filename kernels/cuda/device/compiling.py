# SPDX-License-Identifier: Apache-2.0
"""Compiles a launch plan to machine code for an architecture, with or without a GPU. What serves, the check and
`fused-mlp warm` all compile here, so that they find each other's binaries in Triton's cache."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.cache import FileCacheManager

from fused_mlp.kernels.cuda.device import KERNELS
from fused_mlp.kernels.cuda.kernel_cache import private_directory
from fused_mlp.kernels.cuda.planning.plans import LaunchPlan


def compile_plan(
    plan: LaunchPlan, options: Mapping[str, int | None], capability: int
) -> triton.compiler.CompiledKernel:
    """For 16-byte aligned pointers and a 32-bit row count."""
    source, options = source_of(plan, options, capability)
    with _using_cache():
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def source_of(
    plan: LaunchPlan, options: Mapping[str, int | None], capability: int
) -> tuple[ASTSource, dict[str, int | None]]:
    """The input of Triton's compiler."""
    kernel, constants = KERNELS[plan.kernel], plan.constants_for(capability)
    names = [name for name in kernel.arg_names if name not in constants]
    types = [f"*{element}" for element in plan.pointers] + ["i32"] * (len(names) - len(plan.pointers))
    assert kernel.arg_names[: len(names)] == names  # launches pass them in this order, then the constants
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(plan.pointers))}
    overlap: dict[str, int | None] = {"launch_pdl": True} if plan.overlaps(capability) else {}
    return ASTSource(kernel, signature, dict(constants), aligned), {**options, **overlap}


def load(compiled: triton.compiler.CompiledKernel) -> int:
    """Onto the current device; how many registers the kernel spills, which is known then. The first call has Triton
    build a library of its own, which it keeps in its cache as well."""
    with _using_cache():
        compiled._init_handles()
    return int(compiled.n_spills)


_USING_CACHE = threading.Lock()  # Triton's settings are those of the process


@contextmanager
def _using_cache() -> Iterator[None]:
    with _USING_CACHE, triton.knobs.cache.scope():
        if triton.knobs.cache.manager_class is None:
            triton.knobs.cache.manager_class = MountedCache
        yield


class MountedCache(FileCacheManager):  # type: ignore[misc]
    """Triton's cache, which may be mounted elsewhere than it was filled (its index has absolute paths), and read-only:
    then new binaries go to the temporary directory."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        try:
            super().__init__(key, override, dump)
        except OSError:
            self._write_elsewhere(key)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a binary by name, where this directory is now."""
        try:
            index = json.loads(Path(self._make_path(f"__grp__{filename}")).read_text())
            return {name: self._make_path(name) for name in index["child_paths"] if self.has_file(name)}
        except (OSError, ValueError, KeyError):
            return None  # not there, or not whole

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        if not os.access(self.cache_dir, os.W_OK):
            self._write_elsewhere(self.key)
        return str(super().put(data, filename, binary))

    def _write_elsewhere(self, key: str) -> None:
        self.cache_dir = str(private_directory() / key)
        os.makedirs(self.cache_dir, exist_ok=True)
        self.lock_path = os.path.join(self.cache_dir, "lock")
