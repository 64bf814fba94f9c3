# SPDX-License-Identifier: Apache-2.0
"""Prints a result: a view for people, or with --json exactly one JSON document on stdout. Writes pages, as a whole or
not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.service.cli.failure import fail

if TYPE_CHECKING:
    from rich.console import RenderableType


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]


def show(document: Any, as_json: bool, view: Callable[[], RenderableType]) -> None:
    """`document`: dataclasses or JSON values. `view` is called without --json."""
    if as_json:
        typer.echo(json.dumps(document, default=_plain))
        return
    seen = view()
    if isinstance(seen, str):
        typer.echo(seen)
        return
    from fused_mlp.service.cli.output.rendering import print_table

    print_table(seen)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)  # a path


def check_folder(path: Path | None) -> None:
    """Fails before minutes of measuring."""
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
