# SPDX-License-Identifier: Apache-2.0
"""Options and arguments that several commands declare, the short form in which all of them are declared, and their
values: completions, and durations as people write them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

COMPLETION_TIMEOUT_S = 0.5
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def model_names(context: typer.Context, incomplete: str) -> list[str]:
    """Completions: the models of the server that the command line names. A server that is down or slow offers none."""
    try:
        from fused_mlp.service.client import Client, RetryPolicy

        target = context.params.get("target") or "127.0.0.1:8001"
        with Client(target, timeout_s=COMPLETION_TIMEOUT_S, retry=RetryPolicy(attempts=1)) as client:
            return [model.name for model in client.models() if model.name.startswith(incomplete)]
    except Exception:  # the user is still typing the line
        return []


def option(text: str, metavar: str | None = None, *names: str, panel: str | None = None, **more: Any) -> Any:
    """`text`: the line of --help. `panel`: its heading. `more`: as typer.Option takes them."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


Model = Annotated[str, typer.Argument(help="Name of the model.", autocompletion=model_names)]


def seconds_of_option(option: str, text: str) -> float:
    """'5m' -> 300. Any other text is a usage error."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip(), re.ASCII)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{option}: expected a time such as 30s, 5m or 2h, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]
