# SPDX-License-Identifier: Apache-2.0
"""The hash of a version's weights, beside them in `model.safetensors.sha256`, as `sha256sum` writes it: tells a whole
file from one that is still being copied, or was damaged. Versions without one are served too."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fused_mlp.models.errors import ModelLoadError

SUM_SUFFIX = ".sha256"
_LINE = re.compile(r"\s*([0-9a-fA-F]{64})\b")
_MAX_BYTES = 4096
# Loading a version hashes no larger file: one with tables of many gigabytes must start at once. Such a file is checked
# when it is fetched from a store, and when a server that follows its repository first sees it.
MAX_HASHED_AT_LOAD = 1 << 30


def sum_line(file: Path) -> bytes:
    """The content of the file beside the weights."""
    return f"{hash_file(file)}  {file.name}\n".encode()


def sum_path(file: Path) -> Path:
    return file.with_name(file.name + SUM_SUFFIX)


def hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_sum(file: Path, max_bytes: int | None = None) -> bool:
    """Whether there is a hash to compare with. Raises ModelLoadError where it is another one. A file of more than
    `max_bytes` is not read for it."""
    path = sum_path(file)
    if max_bytes is not None and _size(file) > max_bytes:
        return False
    try:
        with path.open("rb") as opened:
            line = _LINE.match(opened.read(_MAX_BYTES).decode("ascii", "replace"))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ModelLoadError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if line is None:
        raise ModelLoadError(f"{path}: expected 64 hexadecimal digits, as sha256sum writes them")
    try:
        if not file.exists():
            return False  # which is told in other words
        got = hash_file(file)
    except OSError as error:
        raise ModelLoadError(f"{file}: {(error.strerror or str(error)).lower()}") from error
    if got != line[1].lower():
        raise ModelLoadError(
            f"{file}: expected SHA-256 {line[1].lower()[:16]}..., as {path.name} says, got {got[:16]}...: the file is "
            "damaged or not complete; copy it again"
        )
    return True


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # which is told in other words
        return 0
