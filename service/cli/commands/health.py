# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp health`, for people. Without --help or mistakes in its arguments, quick_health.py answers first."""

from __future__ import annotations

from typing import Annotated

import typer

from fused_mlp.service.cli.connection import connected
from fused_mlp.service.cli.failure import ExitCode
from fused_mlp.service.cli.options import model_names
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.client import Client


@connected
def command(
    client: Client,
    *,
    model: Annotated[
        str, typer.Argument(help="Ask about one model, not the server.", autocompletion=model_names)
    ] = "",
    as_json: Json = False,
) -> None:
    """Check whether a server, or one of its models, is serving: exit code 0 if it is, 1 if not."""
    status = client.health(model)
    document = {
        "target": client.target,
        "model": model or None,
        "status": status,
        "serving": status == "SERVING",
    }
    show(document, as_json, lambda: f"{model or client.target}: {status}")
    if status != "SERVING":
        raise typer.Exit(ExitCode.FAILED)
