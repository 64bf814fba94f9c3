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
    graph: Annotated[bool, typer.Option("--graph", help="Draw the program of this model.")] = False,
) -> None:
    """List the models of a server, or describe one."""
    if graph and (not name or as_json):
        raise typer.BadParameter("--graph draws one model: give its name, and no --json, which has all steps")
    models = [client.model(name)] if name else client.models()
    if as_json:
        described = [asdict(model) for model in models]
        typer.echo(json.dumps(described[0] if name else described))
        return
    from fused_mlp.service.cli.rendering import graph_view, model_view, models_table, print_table

    if graph:
        print_table(graph_view(models[0]))
        return
    print_table(model_view(models[0]) if name else models_table(models))
