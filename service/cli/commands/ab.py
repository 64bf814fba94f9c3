# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp ab` compares two arms, or both variants: on a server that it starts, on a running server, or from
recordings in Prometheus. Prints a table or JSON, and writes a page."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fused_mlp.extras import install_command
from fused_mlp.service.cli.connection import Connector, connected_later
from fused_mlp.service.cli.failure import ExitCode, fail
from fused_mlp.service.cli.options import model_names, option, seconds_of_option
from fused_mlp.service.cli.output.progress import progress_bar
from fused_mlp.service.cli.output.result import Json, check_folder, show, write_page
from fused_mlp.service.client import Client, PredictError, RetryPolicy, VersionInfo
from fused_mlp.service.policy.arm import Arm, parse_arm

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from fused_mlp.service.ab.report import Report

_DIFFERENT_INPUTS = 64
_RECORDED = "From recorded metrics"


@connected_later
def command(
    connector: Connector,
    *,
    model: Annotated[
        str, typer.Argument(help="Name of the model, if there are several.", autocompletion=model_names)
    ] = "",
    arms: Annotated[
        str | None,
        option(
            "Two versions and variants to compare. If not given, both variants of the default version.",
            "2/fused,3/fused",
        ),
    ] = None,
    duration: Annotated[
        str, option("How long to run, at least 2s. A number alone is seconds.", "30s|5m")
    ] = "60s",
    rate: Annotated[
        float | None, option("Requests per second. If not given, a short probe finds a rate.", "N", min=1)
    ] = None,
    rows: Annotated[int, option("Rows in each request.", "N", min=1)] = 1,
    source: Annotated[
        str | None,
        option("Rows to send: .npy, .csv or .json. If not given, random ones.", "FILE", "--input", "-i"),
    ] = None,
    metrics: Annotated[
        str | None,
        option(
            "The server's metrics port, for its CPU time. If not given, port 8002 of the same host.",
            "URL",
            panel="Connection",
        ),
    ] = None,
    model_repository: Annotated[
        Path | None, option("Models for the server that is started. If not given, the demo.", "FOLDER")
    ] = None,
    from_prometheus: Annotated[
        str | None,
        option("Send no requests: read what this Prometheus has recorded.", "URL", panel=_RECORDED),
    ] = None,
    since: Annotated[str, option("How far back to read.", "30m|6h|2d", panel=_RECORDED)] = "1h",
    html: Annotated[Path | None, option("Write a page with plots.", "FILE")] = None,
    as_json: Json = False,
) -> None:
    """Compare the fused with the unfused variant, or two versions, under load.

    Requests are sent at random moments at a fixed rate, and a latency counts from the moment a request is due, so it
    includes queueing. The two take turns. Exit code 4: the figures are not valid; the last line says why."""
    check_folder(html)
    pair = None if arms is None else _parse_arms(arms)
    if from_prometheus:
        report = _recorded(from_prometheus, model, since, pair)
    else:
        report = _live(
            connector,
            model=model,
            arms=pair,
            duration_s=_duration(duration),
            rate=rate,
            rows=rows,
            source=source,
            metrics=metrics,
            repository=model_repository,
        )
    report = _with_provenance(report, connector)
    if html is not None:
        from fused_mlp.service.reports.ab.html_report import html_report

        write_page(html, html_report(report))

    def view() -> RenderableType:
        from fused_mlp.service.reports.ab.terminal import report_view

        return report_view(report)

    show(report.as_json(), as_json, view)
    if not report.valid:
        raise typer.Exit(ExitCode.NOT_VALID)


def _live(
    connector: Connector,
    *,
    model: str,
    arms: tuple[Arm, Arm] | None,
    duration_s: float,
    rate: float | None,
    rows: int,
    source: str | None,
    metrics: str | None,
    repository: Path | None,
) -> Report:
    from fused_mlp.service.ab.live_run import LiveRun

    with ExitStack() as stack:
        target = connector.target
        if target is None:
            from fused_mlp.service.local.child_server import ChildServer, ServerDidNotStart

            try:
                with progress_bar("starting a server"):
                    own = stack.enter_context(ChildServer(_environment(repository)))
            except ServerDidNotStart as error:
                fail(str(error))
            target, metrics = own.target, own.metrics_url
        # No retries: they would turn a refusal into a long latency.
        client = stack.enter_context(connector.open(target, RetryPolicy(attempts=1)))
        name, chosen = _find(client, model) if arms is None else _find_arms(client, model, arms)
        version = chosen[0][1]
        run = LiveRun(
            client=client,
            model=name,
            arms=(chosen[0][0], chosen[1][0]),
            versions=(chosen[0][1], chosen[1][1]),
            inputs=_inputs(version, rows, source),
            duration_s=duration_s,
            rate=rate,
            metrics_url=metrics or f"http://{target.rpartition(':')[0]}:8002",
        )
        try:
            with progress_bar(f"{name}: {chosen[0][0]} and {chosen[1][0]} in turns") as bar:
                return run.run(bar.update)
        except PredictError as error:
            if error.code.name == "PERMISSION_DENIED":
                named = "FUSED_MLP_ALLOW_OVERRIDE" in error.message
                hint = "" if named else "; allow it there with FUSED_MLP_ALLOW_OVERRIDE=1"
                fail(f"{target} must let a request name its variant: {error.message}{hint}")
            raise


def _environment(repository: Path | None) -> dict[str, str]:
    """The caller's settings (threads, device, backend) apply, except for those that a comparison depends on. A split or
    a shadow would mix the variants that are compared; TLS and the admin port are not needed."""
    from fused_mlp.service.local.child_server import environment

    wanted: dict[str, object] = {"allow_override": 1, "variant": "fused"}
    if repository is not None:
        wanted["model_repository"] = repository
    return environment(wanted, ("TLS_", "TARGET", "SPLIT", "SHADOW", "POLICY", "ON_MISMATCH", "ADMIN_"))


# Each arm names a version number and a variant.
Chosen = tuple[tuple[Arm, VersionInfo], tuple[Arm, VersionInfo]]


def _duration(text: str) -> float:
    seconds = seconds_of_option("--duration", f"{text}s" if text[-1:].isdigit() else text)
    if seconds < 2:
        raise typer.BadParameter(f"--duration: expected at least 2s, got {text}")
    return seconds


def _parse_arms(text: str) -> tuple[Arm, Arm]:
    try:
        first, second = (parse_arm(part.strip()) for part in text.split(","))
    except ValueError as error:
        why = f": {error}" if text.count(",") == 1 else ""
        raise typer.BadParameter(f"--arms: expected two, as in 2/fused,3/fused, got {text!r}{why}") from None
    return first, second


def _find_arms(client: Client, name: str, arms: tuple[Arm, Arm]) -> tuple[str, Chosen]:
    """Labels are looked up once: all requests name the same version, even if a policy changes."""
    names = [name] if name else [model.name for model in client.models()]
    if len(names) != 1:
        fail(f"there are several models, name one of {', '.join(names)}")
    served = client.model(names[0])
    chosen = []
    for arm in arms:
        number = int(arm.version) if arm.version.isdigit() else None
        if arm.version and number is None:
            known = next((v for v in served.versions if v.in_features), None)
            x = _inputs(known, 1, None)[0] if known else [0.0]
            number = client.predict(names[0], x, arm=arm.version).version
        version = served.version(number)
        if version is None or version.state != "READY":
            fail(
                f"arm {arm} of model {names[0]!r} is not served at {client.target}; `fused-mlp models` says why"
            )
        variant = arm.variant or version.variant
        if variant not in {kernel.variant for kernel in version.kernels}:
            fail(
                f"version {version.version} of model {names[0]!r} has no {variant} kernel at {client.target}"
            )
        chosen.append((Arm(str(version.version), variant), version))
    first, second = chosen
    if first[0] == second[0]:
        fail(f"both arms are {first[0]}")
    taken = [sorted(each.name for each in version.inputs) for _, version in chosen]
    if taken[0] != taken[1]:
        fail(f"{first[0]} takes the inputs {taken[0] or ['input']}, {second[0]} {taken[1] or ['input']}")
    if not taken[0] and first[1].in_features != second[1].in_features:
        fail(
            f"{first[0]} takes rows of {first[1].in_features} numbers, {second[0]} of {second[1].in_features}"
        )
    return names[0], (first, second)


def _find(client: Client, name: str) -> tuple[str, Chosen]:
    """The model to compare: one that is ready in both variants."""
    served = [client.model(name)] if name else client.models()
    found = {
        m.name: v
        for m in served
        if (v := m.version()) and {k.variant for k in v.kernels} == {"fused", "unfused"}
    }
    if not found:
        what = f"model {name!r} is not" if name else "no model is"
        hint = f"start that server with --allow-override 1, and with torch: {install_command('torch')}"
        fail(f"{what} served in both variants at {client.target}; {hint}")
    if len(found) > 1:
        fail(f"there are several models, name one of {', '.join(found)}")
    ((model, version),) = found.items()
    number = str(version.version)
    return model, ((Arm(number, "fused"), version), (Arm(number, "unfused"), version))


def _named_inputs(version: VersionInfo, rows: int, source: str | None) -> list[dict[str, NDArray[Any]]]:
    """Requests of `rows` rows with named inputs."""
    from fused_mlp.service.ab.named_rows import NoRows, made_up, rows_of
    from fused_mlp.service.cli.rows.opening import open_rows
    from fused_mlp.service.cli.rows.source import InputError

    try:
        if source is None:
            return made_up(version, _DIFFERENT_INPUTS, rows)
        with open_rows(source, lambda: version.inputs) as given:
            whole = [part for part in given.parts(rows, 0) if rows_of(part) == rows]
    except (InputError, NoRows) as error:
        fail(str(error))
    return whole or fail(f"{source}: expected at least {rows} rows")


def _inputs(version: VersionInfo, rows: int, source: str | None) -> Any:
    """(n, rows, width): the rows of `source`; without one, noise around the model's example or around zero. For named
    inputs, one dict per request."""
    import numpy as np

    from fused_mlp.service.cli.rows.opening import read_rows
    from fused_mlp.service.cli.rows.source import InputError

    if version.inputs:
        return _named_inputs(version, rows, source)
    if source is None:
        around = np.asarray(version.example or np.zeros(version.in_features), np.float32)
        spread = float(around.std()) or 1.0
        noise = np.random.default_rng(0).normal(0, spread, (_DIFFERENT_INPUTS, rows, version.in_features))
        return (around + 0.5 * noise).astype(np.float32)
    try:
        given = np.atleast_2d(read_rows(source))
    except InputError as error:
        fail(str(error))
    if given.shape[-1] != version.in_features:
        fail(f"{source}: expected rows of {version.in_features} numbers, got {given.shape[-1]}")
    flat = given.reshape(-1, version.in_features)
    return np.resize(flat, (max(1, len(flat) // rows), rows, version.in_features))


def _recorded(url: str, model: str, since: str, arms: tuple[Arm, Arm] | None) -> Report:
    from fused_mlp.service.ab.recorded import NothingRecorded, recorded_report

    for arm in arms or ():
        if not arm.version.isdigit():
            raise typer.BadParameter(f"--arms: expected numbers of versions in recorded metrics, got {arm}")
    try:
        return recorded_report(url, model, since, *([(str(arms[0]), str(arms[1]))] if arms else []))
    except NothingRecorded as error:
        fail(str(error))


def _with_provenance(report: Report, connector: Connector) -> Report:
    from fused_mlp.service.reports.provenance import provenance

    made = provenance()
    if connector.target is not None:  # the server may be on another machine
        made["machine of the client"] = made.pop("machine")
    return replace(report, facts=report.facts | made)
