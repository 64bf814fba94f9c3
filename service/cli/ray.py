# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp ray`: replicas of the server on a Ray cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.service.cli.duration import seconds_of
from fused_mlp.service.cli.failure import fail

if TYPE_CHECKING:
    from fused_mlp.service.ray.cluster import Fleet

POLL_S = 0.3
TELL_AFTER_S = 10.0
FAILED = 3  # exit code of a rollout that went back

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich")

Address = Annotated[
    str,
    typer.Option(
        envvar="RAY_ADDRESS", metavar="HOST:PORT", help="The Ray cluster; auto: the one on this machine."
    ),
]
Name = Annotated[str, typer.Option(help="Name of the fleet, if a cluster has several.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of `fused-mlp serve`; as often as needed."),
]
Repository = Annotated[
    str | None, typer.Option(metavar="PATH|URL", help="The model repository: the same place on all nodes.")
]
Wait = Annotated[bool, typer.Option(help="Wait until it is done; it goes on in any case.")]


@app.callback()
def _group() -> None:
    """Run replicas of the server on a Ray cluster: places them, restarts the dead, scales by utilization."""


@app.command()
def up(
    *,
    replicas: Annotated[
        str, typer.Option(metavar="MIN-MAX", help="How many replicas, such as 2-8 or 3.")
    ] = "1",
    repository: Repository = None,
    given: Given = None,
    endpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to keep endpoints.yaml, endpoints.txt, replicas.json and prometheus.json.",
        ),
    ] = None,
    cpus: Annotated[float, typer.Option(min=0.1, help="Cores of each replica.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each replica.")] = 0,
    target_utilization: Annotated[
        float, typer.Option(min=0.01, max=1, metavar="0..1", help="Utilization of each replica to aim at.")
    ] = 0.7,
    scale_down_after: Annotated[
        str,
        typer.Option(metavar="30s|5m|1h", help="How long fewer replicas must suffice before one is stopped."),
    ] = "5m",
    name: Name = "fused-mlp",
    address: Address = "auto",
    wait: Wait = True,
) -> None:
    """Start a fleet of replicas."""
    from fused_mlp.service.ray.deployment import Deployment, check_settings, read_range, read_settings

    with _explained():
        fewest, most = read_range(replicas)
        settings = read_settings(given or [], repository)
        check_settings(settings)
        try:
            down_after_s = seconds_of(scale_down_after)
        except ValueError as error:
            raise typer.BadParameter(f"--scale-down-after: {error}") from None
        deployment = Deployment(
            name=name,
            fewest=fewest,
            most=most,
            settings=settings,
            cpus=cpus,
            gpus=gpus,
            target_utilization=target_utilization,
            scale_down_after_s=down_after_s,
            folder=str(endpoints.absolute()) if endpoints else None,
        )
        from fused_mlp.service.ray.cluster import connected, create

        with connected(address):
            fleet = create(deployment)
            if not wait:
                return
            _show(_wait_for(fleet, fewest))


@app.command()
def rollout(
    *,
    replicas: Annotated[
        str | None, typer.Option(metavar="MIN-MAX", help="Another number of replicas.")
    ] = None,
    repository: Repository = None,
    given: Given = None,
    name: Name = "fused-mlp",
    address: Address = "auto",
    wait: Wait = True,
) -> None:
    """Replace the replicas one by one, with other settings or the repository as it is now.

    A new one is ready before an old one leaves. Exit code 3: a new one did not start, and the old settings are back."""
    from fused_mlp.service.ray.deployment import read_settings

    with _explained(), _fleet(name, address) as fleet:
        wanted = fleet.deployment().changed(replicas, read_settings(given or [], repository))
        fleet.roll_out(wanted)
        status = fleet.status()
        while wait and status["rollout"]:
            time.sleep(POLL_S)
            status = fleet.status()
        if wait and status["deployment"]["generation"] < wanted.generation:
            typer.echo(f"rolled back: {status['error'] or 'the controller was lost'}", err=True)
            raise typer.Exit(FAILED)
        _show(status)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    name: Name = "fused-mlp",
    address: Address = "auto",
) -> None:
    """Say which replicas there are, where, and how busy."""
    with _explained(), _fleet(name, address) as fleet:
        told = fleet.status()
        if as_json:
            typer.echo(json.dumps(told))
        else:
            _show(told)


@app.command()
def down(name: Name = "fused-mlp", address: Address = "auto") -> None:
    """End a fleet: all replicas answer what they accepted, then stop."""
    with _explained(), _fleet(name, address) as fleet:
        fleet.down()


def _wait_for(fleet: Fleet, fewest: int) -> dict[str, Any]:
    """Until as many are ready. If none can start, the fleet is ended."""
    began, told, error = time.monotonic(), False, ""
    status = fleet.status()
    while _count(status, "ready") < fewest:
        if status["error"] and not _count(status, "ready"):
            fleet.down()
            fail(f"no replica started: {status['error']}")
        if status["error"] not in ("", error):
            error = status["error"]
            typer.echo(
                f"{_count(status, 'ready')} of {fewest} replicas are ready, others are tried again: {error} "
                "(Ctrl-C ends the wait and leaves the fleet running)",
                err=True,
            )
        waiting = sum(not replica["node"] for replica in status["replicas"])
        if waiting and not told and time.monotonic() - began > TELL_AFTER_S:
            told = True
            typer.echo(
                f"{waiting} replicas wait for a place: no node has {status['deployment']['cpus']:g} CPUs "
                f"and {status['deployment']['gpus']:g} GPUs free (`ray status`)",
                err=True,
            )
        time.sleep(POLL_S)
        status = fleet.status()
    return status


@contextmanager
def _fleet(name: str, address: str) -> Iterator[Fleet]:
    from fused_mlp.service.ray.cluster import Fleet, connected

    with connected(address):
        yield Fleet(name)


@contextmanager
def _explained() -> Iterator[None]:
    from fused_mlp.service.ray.deployment import FleetError

    try:
        yield
    except FleetError as error:
        fail(str(error))


def _count(status: dict[str, Any], state: str) -> int:
    return sum(replica["state"] == state for replica in status["replicas"])


def _show(told: dict[str, Any]) -> None:
    deployment = told["deployment"]
    doing = ", rolling out" if told["rollout"] else ""
    typer.echo(
        f"{deployment['name']}: {_count(told, 'ready')} of {told['wanted']} replicas ready "
        f"({deployment['fewest']} to {deployment['most']}), generation {deployment['generation']}{doing}"
    )
    for replica in told["replicas"]:
        used = "" if replica["utilization"] is None else f"  {replica['utilization']:.0%} busy"
        where = (
            replica["address"] or "waits for a place"
            if not replica["node"]
            else replica["address"] or "loading"
        )
        typer.echo(f"  {replica['name']}  {replica['state']}  {where}{used}")
    if told["error"]:
        typer.echo(f"  last error: {told['error']}")
