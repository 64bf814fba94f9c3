# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp load | unload | pin | rollback`: change the served versions of a running server, over its admin port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.cli.failure import ExitCode
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import Model
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.client.model_info import ModelInfo

if TYPE_CHECKING:
    from rich.console import RenderableType


@connected_to_admin
def load(admin: AdminClient, *, model: Model, as_json: Json = False) -> None:
    """Load new and changed versions of a model from the repository.

    Versions that are gone from the repository are retired; the others serve on. The server needs an admin port:
    FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""
    with progress_bar(f"loading {model}"), if_interrupted("the server goes on loading"):
        loaded = admin.load(model)
    _show(loaded, as_json)


@connected_to_admin
def unload(admin: AdminClient, *, model: Model, as_json: Json = False) -> None:
    """Stop serving a model, until it is loaded again.

    Requests accepted before are answered."""
    admin.unload(model)
    show({"model": model, "unloaded": True}, as_json, lambda: f"unloaded {model}")


@connected_to_admin
def pin(
    admin: AdminClient,
    *,
    model: Model,
    version: Annotated[
        str,
        typer.Argument(
            metavar="VERSION|latest",
            help="A number, or latest for the highest. If not given, the present default.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Choose the version that answers requests which name none.

    After `fused-mlp pin digits 3`, higher versions that come later are loaded, but do not take over. After
    `fused-mlp pin digits latest`, the highest version answers again."""
    if version not in ("", "latest") and not (version.isascii() and version.isdecimal() and int(version)):
        raise typer.BadParameter(f"VERSION: expected a number from 1 or latest, got {version!r}")
    _show(admin.pin(model, None if not version else 0 if version == "latest" else int(version)), as_json)
    _check_kept(admin)


@connected_to_admin
def rollback(admin: AdminClient, *, model: Model, as_json: Json = False) -> None:
    """Go back to the version below the default one, and pin it."""
    _show(admin.roll_back(model), as_json)
    _check_kept(admin)


def _check_kept(admin: AdminClient) -> None:
    """A restart would undo the change; `connected` prints the reason."""
    if admin.not_kept:
        raise SystemExit(int(ExitCode.FAILED))


def _show(model: ModelInfo, as_json: bool) -> None:
    def view() -> RenderableType:
        from fused_mlp.service.cli.output.rendering import models_table

        return models_table([model])

    show(model, as_json, view)
