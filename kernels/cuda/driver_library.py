# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver for those who ask it from Python. Imports no torch. (The launcher in C++ loads the same one.)"""

from __future__ import annotations

import ctypes
import os
from functools import cache


@cache
def load_driver() -> ctypes.CDLL:
    """FUSED_MLP_LIBCUDA names another library. Raises OSError where there is none."""
    return ctypes.CDLL(os.environ.get("FUSED_MLP_LIBCUDA") or "libcuda.so.1")


def has_driver() -> bool:
    try:
        load_driver()
    except OSError:
        return False
    return True
