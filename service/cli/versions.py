# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp load | unload | pin | rollback`: what a running server serves, over its admin port."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.client.model_info import ModelInfo

_MODEL = typer.Argument(help="Name of the model.")
_JSON = typer.Option("--json", help="Print JSON.")


@connected_to_admin
def load(
    admin: AdminClient, *, model: Annotated[str, _MODEL], as_json: Annotated[bool, _JSON] = False
) -> None:
    """Serve what the repository holds of a model now.

    Loads versions that are new or have changed, retires those that are gone; the others serve on. The server needs an
    admin port: FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""
    _show(admin.load(model), as_json)


@connected_to_admin
def unload(admin: AdminClient, *, model: Annotated[str, _MODEL]) -> None:
    """Stop serving a model, until it is loaded again.

    Requests accepted before are answered."""
    admin.unload(model)
    typer.echo(f"unloaded {model}")


@connected_to_admin
def pin(
    admin: AdminClient,
    *,
    model: Annotated[str, _MODEL],
    version: Annotated[
        str, typer.Argument(metavar="[VERSION|latest]", help="The default one now, if not given.")
    ] = "",
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say which version answers requests that name none.

    Higher versions that come later are loaded and do not take over: fused-mlp pin digits 3. And they do again with
    fused-mlp pin digits latest"""
    if version not in ("", "latest") and not (version.isascii() and version.isdecimal() and int(version)):
        raise typer.BadParameter(f"VERSION: expected a number from 1 or latest, got {version!r}")
    _show(admin.pin(model, None if not version else 0 if version == "latest" else int(version)), as_json)


@connected_to_admin
def rollback(
    admin: AdminClient, *, model: Annotated[str, _MODEL], as_json: Annotated[bool, _JSON] = False
) -> None:
    """Go back to the version below the default one, and pin it."""
    _show(admin.roll_back(model), as_json)


def _show(model: ModelInfo, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(model)))
        return
    from fused_mlp.service.cli.rendering import models_table, print_table

    print_table(models_table([model]))
