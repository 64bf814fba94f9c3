# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp policy get|set|unset|reset|history` reads and changes the policies of a running server, over its admin
port."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, cast, get_args

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.client.admin import AdminClient, OnMismatch, PolicyInfo, Precision
from fused_mlp.service.variant import Variant

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

PRECISIONS: tuple[str, ...] = get_args(Precision)
_MODEL = typer.Argument(help="Name of the model; all of them if not given.")
_OWNER = typer.Argument(help="Name of the model; '*' for all of them.")
_JSON = typer.Option("--json", help="Print JSON.")


@app.callback()
def _group() -> None:
    """Say or change which arms answer, a model's share of the time and its precision, while the server runs.

    The server needs an admin port: FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""


def get(
    admin: AdminClient,
    *,
    model: Annotated[str, _MODEL] = "",
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show the policies in force."""
    _show(admin.policies(model), as_json)
    for line in () if model or as_json else admin.unknown_models():
        typer.echo(line, err=True)


def change(
    admin: AdminClient,
    *,
    model: Annotated[str, _MODEL] = "",
    variant: Annotated[
        str | None, typer.Option(metavar="fused|unfused", help="Answers requests that name none.")
    ] = None,
    split: Annotated[
        float | None, typer.Option(metavar="0..1", help="Share of requests for the other variant.")
    ] = None,
    allow_override: Annotated[
        bool | None, typer.Option(help="Whether a request may name its variant.", show_default=False)
    ] = None,
    shadow: Annotated[
        float | None, typer.Option(metavar="0..1", help="Share of batches to run on both and compare.")
    ] = None,
    shadow_arm: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Of another version, to run them on instead; '' for none."),
    ] = None,
    on_mismatch: Annotated[
        str | None, typer.Option(metavar="log|unfused", help="What to do when the variants differ.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(metavar="0.01..1000", help="Share of the time beside other models.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRECISIONS), help="What float32 versions are kept in; measured, and bounded."
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="N|latest|previous|LABEL", help="Answers requests that name no version."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM=SHARE", help="Share of another arm, as in 3/fused=0.1; may be repeated."),
    ] = None,
    no_arms: Annotated[
        bool, typer.Option("--no-arms", help="Take the shares of all other arms away.")
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=N", help="Name a version; LABEL= takes the label away. May be repeated."),
    ] = None,
    versions: Annotated[
        str | None,
        typer.Option(metavar="all|latest:N|N,...", help="Which versions of the repository are served."),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Change what is given and leave the rest as it is.

    For example: fused-mlp policy set digits --split 0.1 --shadow 0.01, or --version 2 --arm 3/fused=0.1"""
    _check("--variant", variant, ("fused", "unfused"))
    _check("--on-mismatch", on_mismatch, ("log", "unfused"))
    _check("--precision", precision, PRECISIONS)
    arms = _arms(arm, no_arms)
    given = (
        variant,
        split,
        allow_override,
        shadow,
        on_mismatch,
        weight,
        precision,
        version,
        arms,
        label,
        shadow_arm,
        versions,
    )
    if all(each is None for each in given):
        raise typer.BadParameter(
            "give at least one of --version, --variant, --split, --arm, --no-arms, --label, --allow-override, "
            "--shadow, --shadow-arm, --on-mismatch, --weight, --precision, --versions"
        )
    if label is not None and not model:
        raise typer.BadParameter("--label: expected the name of a model, got none")
    labels = None if label is None else _labels(admin.policies(model)[0].labels, label)
    policies = admin.set_policy(
        model,
        variant=cast("Variant | None", variant),
        split=split,
        allow_override=allow_override,
        shadow=shadow,
        shadow_arm=shadow_arm,
        on_mismatch=cast("OnMismatch | None", on_mismatch),
        weight=weight,
        precision=cast("Precision | None", precision),
        version=version,
        arms=arms,
        labels=labels,
        versions=versions,
    )
    _show(policies, as_json, summary=True)


def unset(
    admin: AdminClient,
    *,
    model: Annotated[str, _OWNER],
    fields: Annotated[
        list[str], typer.Argument(help="Such as split or version: docs/ab/index.md lists them.")
    ],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Take changes of some fields back: they are what the settings say again.

    For example: fused-mlp policy unset digits split shadow_arm"""
    names = [field.removeprefix("--").replace("-", "_") for field in fields]
    _take_back(admin, model, names, as_json)


def reset(
    admin: AdminClient, *, model: Annotated[str, _OWNER], as_json: Annotated[bool, _JSON] = False
) -> None:
    """Take all changes back that were made while servers ran."""
    _take_back(admin, model, ["*"], as_json)


def _take_back(admin: AdminClient, model: str, fields: list[str], as_json: bool) -> None:
    policies = admin.unset_policy("" if model == "*" else model, fields)
    if policies or as_json:
        _show(policies, as_json, summary=True)
    else:
        typer.echo(f"changes of {model}, which is not served here, are taken back")


def _arms(options: list[str] | None, no_arms: bool) -> dict[str, float] | None:
    if no_arms and options:
        raise typer.BadParameter("give --arm or --no-arms, not both")
    if not options:
        return {} if no_arms else None
    arms = {}
    for text in options:
        name, _, share = text.partition("=")
        try:
            arms[name] = float(share)
        except ValueError:
            raise typer.BadParameter(f"--arm: expected ARM=SHARE, as in 3/fused=0.1, got {text!r}") from None
    return arms


def _labels(before: Mapping[str, int], options: list[str]) -> dict[str, int]:
    labels = dict(before)
    for text in options:
        name, equals, version = text.partition("=")
        if not equals or (version and not version.isdigit()):
            raise typer.BadParameter(f"--label: expected LABEL=VERSION, as in stable=3, got {text!r}")
        if version:
            labels[name] = int(version)
        else:
            labels.pop(name, None)
    return labels


def _check(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise typer.BadParameter(f"{option}: expected {expected}, got {value!r}")


def _show(policies: list[PolicyInfo], as_json: bool, *, summary: bool = False) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(policy) for policy in policies]))
        return
    from fused_mlp.service.cli.rendering import policy_table, print_table

    print_table(policy_table(policies, summary=summary))


def history(admin: AdminClient, *, model: Annotated[str, _MODEL] = "") -> None:
    """Show who changed what and when, since the server started."""
    for each in admin.history(model):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time_s))
        typer.echo(f"{when}  {each.model or 'all models'}, by {each.by}: {each.what}")


app.command("get")(connected_to_admin(get))
app.command("history")(connected_to_admin(history))
app.command("set")(connected_to_admin(change))
app.command("unset")(connected_to_admin(unset))
app.command("reset")(connected_to_admin(reset))
