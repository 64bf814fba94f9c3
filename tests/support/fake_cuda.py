# SPDX-License-Identifier: Apache-2.0
"""The fake NVIDIA driver of kernels/csrc/tests/fake_cuda, which an editable build makes, and how a process gets it."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]


def library() -> Path:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    path = ROOT / "build" / f"{python}-{python}-{platform}" / "kernels/csrc/tests/fake_cuda/libfake_cuda.so"
    if not path.exists():
        raise FileNotFoundError(f"expected the fake driver at {path}: make install")
    return path


def environment(*, kernels: str = "executor", **more: object) -> dict[str, str]:
    """What makes a process use the fake. kernels: `executor`, which runs PTX, or `empty`. `more` are the fake's own
    settings (control.h): delay_us=0, fail_file=..."""
    # The interpreter reads PTX without line numbers.
    variables = {"FUSED_MLP_LIBCUDA": str(library()), "TRITON_DISABLE_LINE_INFO": "1"}
    if kernels == "empty":
        variables["FAKE_CUDA_KERNELS"] = "empty"
    else:
        variables["FAKE_CUDA_EXECUTOR"] = (
            f"env PYTHONPATH={ROOT} {sys.executable} -m tests.support.cuda_executor"
        )
    return variables | {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in more.items()}
