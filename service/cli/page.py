# SPDX-License-Identifier: Apache-2.0
"""A page that a command writes: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from fused_mlp.service.cli.failure import fail


def check_folder(path: Path | None) -> None:
    """Before minutes of measuring."""
    if path is not None and not path.absolute().parent.is_dir():
        fail(f"{path}: there is no folder {path.parent}")


def write_page(path: Path, text: str) -> None:
    path = Path(os.path.realpath(path))  # a link stays a link
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror or error}")
    finally:
        draft.unlink(missing_ok=True)
