"""`fused-mlp models` shows what a server serves, with which kernels, and why these were chosen."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fused_mlp.service.cli.connection import connected
from fused_mlp.service.client import Client


@connected
def command(
    client: Client,
    *,
    name: Annotated[str, typer.Argument(help="Show everything about this model.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models of a server, or describe one."""
    models = [client.model(name)] if name else client.models()
    if as_json:
        described = [asdict(model) for model in models]
        typer.echo(json.dumps(described[0] if name else described))
        return
    from fused_mlp.service.cli.rendering import model_view, models_table, print_table

    print_table(model_view(models[0]) if name else models_table(models))
