# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp canary` has a running server move its traffic to another arm step by step, and tells how it ends."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.cli.duration import seconds_of
from fused_mlp.service.client.admin import AdminClient, CanaryInfo, PolicyInfo

POLL_S = 0.5
ROLLED_BACK = 3  # the exit code


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"--interval: {error}") from None


def _steps(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--steps: expected percentages such as 1,5,25,100, got {text!r}") from None


@connected_to_admin
def command(
    admin: AdminClient,
    *,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    to: Annotated[
        str | None, typer.Option(metavar="ARM", help="The new arm: 4, 4/fused, latest or a label.")
    ] = None,
    steps: Annotated[
        str, typer.Option(metavar="1,5,...", help="Shares of the requests, in percent.")
    ] = "1,5,25,100",
    interval: Annotated[str, typer.Option(metavar="30s|5m|1h", help="How long each step takes.")] = "5m",
    max_error_increase: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="0..1", help="How much larger its share of failures may be."),
    ] = 0.01,
    max_p99_ratio: Annotated[
        float, typer.Option(min=1, metavar="N", help="How many times the p99 of the old arm its p99 may be.")
    ] = 1.5,
    min_requests: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that the new arm answers before the next step.")
    ] = 100,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the one that runs: the old arm answers all.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the end; the server goes on in any case.")] = True,
) -> None:
    """Move the traffic of a model to another arm step by step, and back at once if that is worse.

    Runs inside the server. Exit code 0: the arm is the default now; 3: it was worse, or was stopped; the old one
    answers."""
    if (to is None) != stop:
        raise typer.BadParameter("give --to ARM, or --stop")
    if to is None:
        _tell_pinned(model, admin.stop_canary(model))
        return
    policy = admin.start_canary(
        model,
        to,
        steps=_steps(steps),
        interval_s=_seconds(interval),
        max_error_increase=max_error_increase,
        max_p99_ratio=max_p99_ratio,
        min_requests=min_requests,
    )
    told = None
    while wait:
        if policy.canary is not None and policy.canary != told:
            told = policy.canary
            typer.echo(_line(model, told))
            if told.state != "running":
                break
        time.sleep(POLL_S)
        policy = admin.policies(model)[0]
    if told is not None:
        _tell_pinned(model, policy)
        if told.state != "promoted":
            raise typer.Exit(ROLLED_BACK)


def _tell_pinned(model: str, policy: PolicyInfo) -> None:
    if policy.version.isdigit():
        typer.echo(
            f"{model} is pinned to version {policy.version}; to follow new versions again: "
            f"fused-mlp pin {model} latest"
        )


def _line(model: str, told: CanaryInfo) -> str:
    text = f", {told.text}" if told.text else ""
    return f"{model} to {told.to}: {told.state.replace('_', ' ')}, {told.share:.4g} of the requests{text}"
