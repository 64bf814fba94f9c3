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
_MOST_BYTES = 4096


def sum_line(data: bytes, name: str) -> bytes:
    """What the file beside the weights holds."""
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()


def sum_path(file: Path) -> Path:
    return file.with_name(file.name + SUM_SUFFIX)


def hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_sum(file: Path) -> bool:
    """Whether there is a hash to compare with. Raises ModelLoadError where it is another one."""
    path = sum_path(file)
    try:
        with path.open("rb") as opened:
            line = _LINE.match(opened.read(_MOST_BYTES).decode("ascii", "replace"))
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
