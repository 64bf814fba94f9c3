# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp profile --live` traces real traffic of a running server, over its admin port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fused_mlp.service.cli.failure import explain, fail, misuse
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import show, write_page
from fused_mlp.service.client import PredictError
from fused_mlp.service.client.admin import AdminClient

if TYPE_CHECKING:
    from rich.console import RenderableType

FILE_NAME = "live.json"


def profile_live(admin: AdminClient, seconds: float, folder: Path, as_json: bool) -> None:
    """Write the trace to the folder, and print how long the phases of a request took."""
    if not 0 < seconds <= 60:
        misuse(f"--seconds: expected more than 0 and at most 60, got {seconds:g}")
    try:
        with progress_bar(f"tracing for {seconds:g} s"):
            trace = admin.trace(seconds)
    except PredictError as error:
        fail(explain(error, admin=True).replace("--target", "--live"))
    from fused_mlp.service.reports.profile.live import live_view, perfetto_trace, phase_times

    def view() -> RenderableType:
        return live_view(trace, seconds)

    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")
    write_page(path, json.dumps(perfetto_trace(trace)))
    document = {
        "requests": trace.requests,
        "dropped": trace.dropped,
        "phases": phase_times(trace),
        "trace": path,
    }
    show(document, as_json, view)
    if not as_json:
        typer.echo(f"written: {path}; open it in ui.perfetto.dev")
