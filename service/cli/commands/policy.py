# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp policy get|set|unset|reset|history` reads and changes the policies of a running server, over its admin
port."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.cli.options import model_names, option
from fused_mlp.service.cli.output.result import Json, show
from fused_mlp.service.client.admin import AdminClient, PolicyChanged, PolicyInfo, Precision

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

PRECISIONS: tuple[str, ...] = get_args(Precision)
Model = Annotated[
    str, typer.Argument(help="Name of the model; all of them if not given.", autocompletion=model_names)
]
Owner = Annotated[
    str, typer.Argument(help="Name of the model; '*' for all of them.", autocompletion=model_names)
]


_answers = partial(option, panel="What answers")
_request = partial(option, panel="What a request may choose")
_shadow = partial(option, panel="Comparing in the background")
_resources = partial(option, panel="Versions and resources")


@app.callback()
def _group() -> None:
    """Show or change which versions and variants answer, while the server runs.

    An arm is a version, a variant (fused or unfused), or both: 3, fused, 3/fused.

    The server needs an admin port: FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""


def get(admin: AdminClient, *, model: Model = "", as_json: Json = False) -> None:
    """Show the policies in force."""
    _show(admin.policies(model), as_json)
    for line in () if model or as_json else admin.unknown_models():
        typer.echo(line, err=True)


def change(
    admin: AdminClient,
    *,
    model: Model = "",
    version: Annotated[
        str | None, _answers("The version of requests that name none.", "N|latest|previous|LABEL")
    ] = None,
    variant: Annotated[
        str | None, _answers("The variant of requests that name none.", "fused|unfused")
    ] = None,
    split: Annotated[float | None, _answers("Share of these requests for the other variant.", "0..1")] = None,
    arm: Annotated[
        list[str] | None, _answers("Share of another arm, such as 3/fused=0.1. May be repeated.", "ARM=SHARE")
    ] = None,
    no_arms: Annotated[bool, _answers("Take away the shares of all other arms.", None, "--no-arms")] = False,
    label: Annotated[
        list[str] | None, _answers("Name a version; LABEL= removes the label. May be repeated.", "LABEL=N")
    ] = None,
    allow_override: Annotated[
        bool | None, _request("Whether a request may name its variant.", show_default=False)
    ] = None,
    shadow: Annotated[
        float | None, _shadow("Share of the batches to run on both variants, to compare the outputs.", "0..1")
    ] = None,
    shadow_arm: Annotated[
        str | None, _shadow("An arm to compare with, in place of the other variant; '': none.", "ARM")
    ] = None,
    on_mismatch: Annotated[
        str | None, _shadow("What to do when the variants' outputs differ.", "log|unfused")
    ] = None,
    versions: Annotated[
        str | None, _resources("Which versions of the repository to serve.", "all|latest:N|N,...")
    ] = None,
    weight: Annotated[
        float | None, _resources("Its share of the CPU time, relative to other models.", "0.01..1000")
    ] = None,
    precision: Annotated[
        str | None,
        _resources(
            "How the weights of float32 versions are kept. The error is measured and bounded.",
            "|".join(PRECISIONS),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the given fields of a policy; the others stay as they are.

    For example: fused-mlp policy set digits --split 0.1 --shadow 0.01, or --version 2 --arm 3/fused=0.1"""
    _check("--variant", variant, ("fused", "unfused"))
    _check("--on-mismatch", on_mismatch, ("log", "unfused"))
    _check("--precision", precision, PRECISIONS)
    changes: dict[str, Any] = {
        "variant": variant,
        "split": split,
        "allow_override": allow_override,
        "shadow": shadow,
        "shadow_arm": shadow_arm,
        "on_mismatch": on_mismatch,
        "weight": weight,
        "precision": precision,
        "version": version,
        "versions": versions,
        "arms": _arms(arm, no_arms),
    }
    if label is None and all(value is None for value in changes.values()):
        raise typer.BadParameter(
            "give at least one of --version, --variant, --split, --arm, --no-arms, --label, --allow-override, "
            "--shadow, --shadow-arm, --on-mismatch, --weight, --precision, --versions"
        )
    if label is not None:
        if not model:
            raise typer.BadParameter("--label: expected the name of a model, got none")
        changes["labels"] = _labels(admin.policies(model)[0].labels, label)
    policies = admin.set_policy(model, **changes)
    _show(policies, as_json, summary=True)


def unset(
    admin: AdminClient,
    *,
    model: Owner,
    fields: Annotated[
        list[str], typer.Argument(help="Such as split or version: docs/ab/policies.md lists them.")
    ],
    as_json: Json = False,
) -> None:
    """Take back the changes of some fields: the server's settings apply again.

    For example: fused-mlp policy unset digits split shadow_arm"""
    names = [field.removeprefix("--").replace("-", "_") for field in fields]
    _take_back(admin, model, names, as_json)


def reset(admin: AdminClient, *, model: Owner, as_json: Json = False) -> None:
    """Take back all changes that were made while the server ran."""
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
    def view() -> RenderableType:
        from fused_mlp.service.cli.output.rendering import policy_table

        return policy_table(policies, summary=summary)

    show(policies, as_json, view)


def history(admin: AdminClient, *, model: Model = "", as_json: Json = False) -> None:
    """Show which changes were made, when and by which caller, since the server started."""
    changes = admin.history(model)
    show(changes, as_json, lambda: "\n".join(map(_line, changes)) or "no changes since the server started")


def _line(change: PolicyChanged) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.time_s))
    return f"{when}  {change.model or 'all models'}, by {change.by}: {change.what}"


app.command("get")(connected_to_admin(get))
app.command("history")(connected_to_admin(history))
app.command("set")(connected_to_admin(change))
app.command("unset")(connected_to_admin(unset))
app.command("reset")(connected_to_admin(reset))
