# SPDX-License-Identifier: Apache-2.0
"""What a command prints: a view for people, or with --json one JSON document on stdout and nothing else there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]


def show(document: Any, as_json: bool, view: Callable[[], RenderableType]) -> None:
    """`document`: dataclasses, or what JSON has. `view` is called where people read."""
    if as_json:
        typer.echo(json.dumps(document, default=_plain))
        return
    seen = view()
    if isinstance(seen, str):
        typer.echo(seen)
        return
    from fused_mlp.service.cli.rendering import print_table

    print_table(seen)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)  # a path
