# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp canary` has a running server move its traffic to another arm step by step, and reports the end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.cli.failure import ExitCode
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import Model, option, seconds_of_option
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.client.admin import AdminClient, CanaryInfo, PolicyInfo

POLL_S = 0.5
_LIMITS = "What counts as worse"


def _steps(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--steps: expected percentages such as 1,5,25,100, got {text!r}") from None


@connected_to_admin
def command(
    admin: AdminClient,
    *,
    model: Model,
    to: Annotated[
        str | None,
        option("What to move to: a version and variant such as 4, 4/fused, latest or a label.", "ARM"),
    ] = None,
    steps: Annotated[
        str, option("Shares of the requests at each step, in percent.", "1,5,...")
    ] = "1,5,25,100",
    interval: Annotated[str, option("How long each step lasts.", "30s|5m|1h")] = "5m",
    max_error_increase: Annotated[
        float,
        option(
            "How much larger than the old arm's its share of failed requests may be.",
            "0..1",
            min=0,
            max=1,
            panel=_LIMITS,
        ),
    ] = 0.01,
    max_p99_ratio: Annotated[
        float,
        option(
            "How many times the old arm's its p50, p90 and p99 latency may be.", "N", min=1, panel=_LIMITS
        ),
    ] = 1.5,
    min_requests: Annotated[
        int, option("Requests that each arm answers before the next step.", "N", min=1, panel=_LIMITS)
    ] = 100,
    stop: Annotated[
        bool, option("End the canary that runs: the old arm answers all requests.", None, "--stop")
    ] = False,
    wait: Annotated[bool, option("Wait for the end. The server goes on in any case.")] = True,
    as_json: Json = False,
) -> None:
    """Move a model's traffic to another version step by step, and back at once if that is worse.

    The server does this by itself; the command follows it. Exit code 0: the new version is the default now. 3: it
    was worse or was stopped, and the old one answers all requests."""
    if (to is None) != stop:
        raise typer.BadParameter("give --to ARM, or --stop")
    if to is None:
        policy = admin.stop_canary(model)
        if (
            policy.canary is not None and policy.canary.state == "running"
        ):  # the server's task has not stopped it yet
            policy = replace(policy, canary=replace(policy.canary, state="stopped", share=0.0, text=""))
        _show(model, policy, as_json)
        return
    shares = _steps(steps)
    policy = admin.start_canary(
        model,
        to,
        steps=shares,
        interval_s=seconds_of_option("--interval", interval),
        max_error_increase=max_error_increase,
        max_p99_ratio=max_p99_ratio,
        min_requests=min_requests,
    )
    if wait:
        policy = _follow(admin, model, policy, shares, as_json)
    _show(model, policy, as_json)
    if wait and policy.canary is not None and policy.canary.state != "promoted":
        raise typer.Exit(ExitCode.WENT_BACK)


def _follow(
    admin: AdminClient, model: str, policy: PolicyInfo, shares: list[float], as_json: bool
) -> PolicyInfo:
    """Prints a line for each step; returns when the canary has ended."""
    status = None
    note = f"the canary goes on; to end it: fused-mlp canary {model} --stop"
    with progress_bar(f"canary of {model}") as bar, if_interrupted(note):
        while True:
            if policy.canary is not None and policy.canary != status:
                status = policy.canary
                if not as_json:
                    typer.echo(_line(model, status))
                passed = sum(share < 100 * status.share for share in shares)
                bar.update(passed, len(shares), f"step {min(passed + 1, len(shares))} of {len(shares)}")
                if status.state != "running":
                    return policy
            time.sleep(POLL_S)
            policy = admin.policies(model)[0]


def _show(model: str, policy: PolicyInfo, as_json: bool) -> None:
    if policy.canary is not None and policy.canary.state == "running":
        text = f"{model} to {policy.canary.to}: running; fused-mlp policy get {model} shows how far it is"
    else:
        text = f"{model} is pinned to version {policy.version}; to follow new versions again: "
        text += f"fused-mlp pin {model} latest"
    document = {
        "model": model,
        "version": policy.version,
        "default_version": policy.default_version,
        "canary": policy.canary,
    }
    show(document, as_json, lambda: text)


def _line(model: str, status: CanaryInfo) -> str:
    text = f", {status.text}" if status.text else ""
    return (
        f"{model} to {status.to}: {status.state.replace('_', ' ')}, {status.share:.4g} of the requests{text}"
    )
