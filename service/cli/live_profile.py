# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp profile --live` traces real traffic of a running server, over its admin port."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from fused_mlp.service.cli.failure import explain, fail
from fused_mlp.service.client import PredictError
from fused_mlp.service.client.admin import AdminClient

FILE_NAME = "live.json"


def profile_live(admin: AdminClient, seconds: float, folder: Path, as_json: bool) -> None:
    """Write the trace to the folder, and print how long the phases of a request took."""
    if not 0 < seconds <= 60:
        fail(f"--seconds: expected more than 0 and at most 60, got {seconds:g}")
    try:
        trace = admin.trace(seconds)
    except PredictError as error:
        fail(explain(error, admin=True).replace("--target", "--live"))
    from fused_mlp.service.reports.profile.live import live_view, perfetto_trace, phase_times

    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(perfetto_trace(trace)))
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")
    if as_json:
        times = [asdict(each) for each in phase_times(trace)]
        result = {"requests": trace.requests, "dropped": trace.dropped, "phases": times, "trace": str(path)}
        typer.echo(json.dumps(result))
        return
    from fused_mlp.service.cli.rendering import print_table

    print_table(live_view(trace, seconds))
    typer.echo(f"written: {path}; open it in ui.perfetto.dev")
