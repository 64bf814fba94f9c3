# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp models` shows the models of a server, their kernels, and the reason for each kernel."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fused_mlp.service.cli.connection import connected
from fused_mlp.service.cli.options import model_names, option
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.client import Client, PredictError

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_INTERVAL_S = 0.5


@connected
def command(
    client: Client,
    *,
    name: Annotated[
        str, typer.Argument(help="Show everything about this model.", autocompletion=model_names)
    ] = "",
    as_json: Json = False,
    graph: Annotated[bool, option("Draw the program of this model.", None, "--graph")] = False,
    watch: Annotated[bool, option("Print a line for each change, until Ctrl-C.", None, "--watch")] = False,
) -> None:
    """List the models of a server, or describe one.

    --target may name the server's admin port too; that needs a token if the server has a list of callers."""
    if graph and (not name or as_json):
        raise typer.BadParameter("--graph draws one model: give its name, and no --json, which has all steps")
    if watch:
        _watch(client, name, as_json)
    models = [client.model(name)] if name else client.models()

    def view() -> RenderableType:
        from fused_mlp.service.cli.output.rendering import graph_view, model_view, models_table

        if not name:
            return models_table(models)
        return graph_view(models[0]) if graph else model_view(models[0])

    show(models[0] if name else models, as_json, view)


def _watch(client: Client, name: str, as_json: bool) -> NoReturn:
    """Prints a line for each version whenever its state, or the default, changes; the first look prints all. Continues
    when the server is restarted."""
    before: dict[tuple[str, int], tuple[str, bool, str]] = {}
    away = False
    while True:
        try:
            models = [model for model in client.models() if name in ("", model.name)]
        except PredictError as error:
            if not before or error.code.name not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise
            if not away:
                typer.echo(f"{time.strftime('%H:%M:%S')}  waiting for the server: {error.message}", err=True)
            away = True
            time.sleep(WATCH_INTERVAL_S)
            continue
        away = False
        now = {
            (model.name, v.version): (v.state, v.version == model.default_version, v.reason)
            for model in models
            for v in model.versions
        }
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                _print_change(key, *now.get(key, ("RETIRED", False, "")), as_json=as_json)
        before = now
        time.sleep(WATCH_INTERVAL_S)


def _print_change(key: tuple[str, int], state: str, default: bool, reason: str, *, as_json: bool) -> None:
    model, version = key
    change = {"model": model, "version": version, "state": state, "default": default, "reason": reason}
    if as_json:
        line = json.dumps(change)
    else:
        words = ["default" if default else "", reason if state != "READY" else ""]
        line = f"{time.strftime('%H:%M:%S')}  {model}/{version}  {state}  {'  '.join(filter(None, words))}"
    typer.echo(line.rstrip())
    sys.stdout.flush()
