# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp ray`: replicas of the server on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.service.cli.failure import ExitCode, fail
from fused_mlp.service.cli.interruption import if_interrupted
from fused_mlp.service.cli.options import option, seconds_of_option
from fused_mlp.service.cli.output.progress import Bar, progress_bar
from fused_mlp.service.cli.output.result import Json, show

if TYPE_CHECKING:
    from fused_mlp.service.ray.cluster import Fleet

POLL_S = 0.3
HINT_AFTER_S = 10.0

_SCALING = "How many, and how large"

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich")

Address = Annotated[
    str,
    option("Address of the Ray cluster; auto: the one on this machine.", "HOST:PORT", envvar="RAY_ADDRESS"),
]
Name = Annotated[str, option("Name of the fleet of replicas, if the cluster has several.")]
Given = Annotated[
    list[str] | None, option("A setting of `fused-mlp serve`. May be repeated.", "NAME=VALUE", "--set")
]
Repository = Annotated[str | None, option("Model repository, at the same place on all nodes.", "PATH|URL")]
Wait = Annotated[bool, option("Wait until it is done. The cluster goes on in any case.")]


@app.callback()
def _group() -> None:
    """Run and scale replicas of the server on a Ray cluster.

    A controller in the cluster places the replicas, restarts those that die, and adds or removes some by load."""


@app.command()
def up(
    *,
    replicas: Annotated[str, option("How many replicas, such as 2-8 or 3.", "MIN-MAX", panel=_SCALING)] = "1",
    repository: Repository = None,
    given: Given = None,
    endpoints: Annotated[
        Path | None,
        option("Where to keep endpoints.yaml, endpoints.txt, replicas.json and prometheus.json.", "DIR"),
    ] = None,
    cpus: Annotated[float, option("Cores of each replica.", min=0.1, panel=_SCALING)] = 1,
    gpus: Annotated[float, option("GPUs of each replica.", min=0, panel=_SCALING)] = 0,
    target_utilization: Annotated[
        float, option("How busy replicas should be.", "0..1", min=0.01, max=1, panel=_SCALING)
    ] = 0.7,
    scale_down_after: Annotated[
        str,
        option("How long fewer replicas must be enough before one is stopped.", "30s|5m|1h", panel=_SCALING),
    ] = "5m",
    name: Name = "fused-mlp",
    address: Address = "auto",
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Start a fleet of replicas."""
    from fused_mlp.service.ray.deployment import Deployment, check_settings, read_range, read_settings

    with _explained():
        fewest, most = read_range(replicas)
        settings = read_settings(given or [], repository)
        check_settings(settings)
        deployment = Deployment(
            name=name,
            fewest=fewest,
            most=most,
            settings=settings,
            cpus=cpus,
            gpus=gpus,
            target_utilization=target_utilization,
            scale_down_after_s=seconds_of_option("--scale-down-after", scale_down_after),
            folder=str(endpoints.absolute()) if endpoints else None,
        )
        from fused_mlp.service.ray.cluster import connected, create

        with connected(address):
            fleet = create(deployment)
            _show(_wait_for(fleet, fewest) if wait else fleet.status(), as_json)


@app.command()
def rollout(
    *,
    replicas: Annotated[str | None, option("Another number of replicas.", "MIN-MAX")] = None,
    repository: Repository = None,
    given: Given = None,
    name: Name = "fused-mlp",
    address: Address = "auto",
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Replace the replicas one by one, with other settings or the repository as it is now.

    A new one is ready before an old one leaves. Exit code 3: a new one did not start, and the old settings are back."""
    from fused_mlp.service.ray.deployment import read_settings

    with _explained(), _fleet(name, address) as fleet:
        wanted = fleet.deployment().changed(replicas, read_settings(given or [], repository))
        fleet.roll_out(wanted)
        status = _follow(fleet, wanted.generation) if wait else fleet.status()
        _show(status, as_json)
        if wait and status["deployment"]["generation"] < wanted.generation:
            typer.echo(f"rolled back: {status['error'] or 'the controller was lost'}", err=True)
            raise typer.Exit(ExitCode.WENT_BACK)


@app.command()
def status(as_json: Json = False, name: Name = "fused-mlp", address: Address = "auto") -> None:
    """Show the replicas: where they run and how busy they are."""
    with _explained(), _fleet(name, address) as fleet:
        _show(fleet.status(), as_json)


@app.command()
def down(name: Name = "fused-mlp", address: Address = "auto", as_json: Json = False) -> None:
    """End a fleet: all replicas answer the requests they have accepted, then stop."""
    with (
        _explained(),
        _fleet(name, address) as fleet,
        progress_bar(f"ending {name}"),
        if_interrupted("the replicas go on ending"),
    ):
        fleet.down()
    show({"name": name, "down": True}, as_json, lambda: f"{name} is down")


def _follow(fleet: Fleet, generation: int) -> dict[str, Any]:
    """Waits until the rollout has ended."""
    note = "the rollout goes on; `fused-mlp ray status` follows it"
    with progress_bar("replacing replicas") as bar, if_interrupted(note):
        while (status := fleet.status())["rollout"]:
            new = [replica for replica in status["replicas"] if replica["generation"] == generation]
            bar.update(sum(replica["state"] == "ready" for replica in new), status["wanted"])
            time.sleep(POLL_S)
        return status


def _wait_for(fleet: Fleet, fewest: int) -> dict[str, Any]:
    note = "the fleet goes on; `fused-mlp ray down` ends it"
    with progress_bar("starting replicas") as bar, if_interrupted(note):
        return _wait(fleet, fewest, bar)


def _wait(fleet: Fleet, fewest: int, bar: Bar) -> dict[str, Any]:
    """Waits until this many replicas are ready. If none can start, the fleet is ended."""
    began, hinted, error = time.monotonic(), False, ""
    status = fleet.status()
    while _count(status, "ready") < fewest:
        bar.update(_count(status, "ready"), fewest)
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
        if waiting and not hinted and time.monotonic() - began > HINT_AFTER_S:
            hinted = True
            typer.echo(
                f"{waiting} replicas are waiting: no node has {status['deployment']['cpus']:g} CPUs "
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


def _show(status: dict[str, Any], as_json: bool) -> None:
    show(status, as_json, lambda: "\n".join(_lines(status)))


def _lines(status: dict[str, Any]) -> Iterator[str]:
    deployment = status["deployment"]
    doing = ", rolling out" if status["rollout"] else ""
    yield (
        f"{deployment['name']}: {_count(status, 'ready')} of {status['wanted']} replicas ready "
        f"({deployment['fewest']} to {deployment['most']}), generation {deployment['generation']}{doing}"
    )
    for replica in status["replicas"]:
        used = "" if replica["utilization"] is None else f"  {replica['utilization']:.0%} busy"
        where = replica["address"] or ("loading" if replica["node"] else "waits for a place")
        yield f"  {replica['name']}  {replica['state']}  {where}{used}"
    if status["error"]:
        yield f"  last error: {status['error']}"
