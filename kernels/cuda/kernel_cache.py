# SPDX-License-Identifier: Apache-2.0
"""Where Triton keeps compiled kernels, and where it writes what that place does not take. Imports no triton."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path


def cache_directory() -> Path:
    home = os.environ.get("TRITON_HOME") or Path.home()
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


@cache
def private_directory() -> Path:
    """In the temporary directory, and this user's alone, since libraries are loaded from it. The same one at every
    start, unless its name is taken: then one that ends with the process."""
    path = Path(tempfile.gettempdir(), f"fused-mlp-triton-{os.getuid()}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write:
        return path
    path = Path(tempfile.mkdtemp(prefix="fused-mlp-triton-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def unusable() -> str | None:
    """Why Triton cannot load a library of its own from where it writes, or None."""
    cache = cache_directory()
    there = next(path for path in (cache, *cache.parents) if path.exists())
    holds_library = any(cache.glob("*/cuda_utils*.so"))
    if holds_library or (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        written, what, variables = there, f"Triton's cache {cache}", "TRITON_CACHE_DIR"
    else:
        written = Path(tempfile.gettempdir())
        what = f"Triton's cache {cache} cannot be written to, and {written}"
        variables = "TRITON_CACHE_DIR or TMPDIR"
    if os.statvfs(written).f_flag & os.ST_NOEXEC:
        return f"{what} is on a file system mounted noexec: set {variables} to another directory"
    return None
