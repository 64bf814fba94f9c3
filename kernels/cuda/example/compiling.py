# SPDX-License-Identifier: Apache-2.0
"""Compiles `fused_mlp.cu` with nvcc for one architecture, to machine code or to PTX. Needs no GPU, and no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fused_mlp.kernels.errors import KernelError

SOURCE = Path(__file__).with_name("fused_mlp.cu")
NAME = "fused_mlp"  # of the kernel
# As in the source.
ROWS, HIDDEN, OUT_TILE, THREADS, K = 16, 64, 64, 128, 16


def find_nvcc() -> str | None:
    """On PATH, or below CUDA_HOME."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=f"{home}/bin") if home else None)


@lru_cache(maxsize=32)
def compile_example(capability: int, kind: Literal["cubin", "ptx"] = "cubin") -> bytes:
    nvcc = find_nvcc()
    if nvcc is None:
        raise KernelError("nvcc is not found: install the CUDA toolkit, and have it on PATH or in CUDA_HOME")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"fused_mlp.{kind}"
        command = [nvcc, f"-{kind}", f"-arch=sm_{capability}", "-std=c++17", "-o", str(target), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise KernelError(
                f"nvcc could not compile {SOURCE.name} for sm_{capability}: {said[0] if said else ''}"
            )
        return target.read_bytes()
