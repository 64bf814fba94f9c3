# SPDX-License-Identifier: Apache-2.0
"""How large an install is: the one definition, for the benchmark, the packaging tests and the README."""

from __future__ import annotations

from pathlib import Path


def megabytes(venv: Path) -> float:
    """MB (10^6 bytes) of all files; links are not followed. Subtract that of an empty venv to leave out pip."""
    files = (path for path in venv.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6
