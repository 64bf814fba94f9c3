# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp policy get|set|unset|reset|history` reads and changes the policies of a running server, over its admin
port."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from fused_mlp.service.cli.completion import model_names
from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.cli.result import Json, show
from fused_mlp.service.client.admin import AdminClient, OnMismatch, PolicyChanged, PolicyInfo, Precision
from fused_mlp.service.variant import Variant

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


def _option(panel: str, metavar: str | None, help_text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help_text, rich_help_panel=panel, **more)


_ANSWERS, _REQUEST = "What answers", "What a request may choose"
_SHADOW, _RESOURCES = "Comparing in the background", "Versions and resources"


@app.callback()
def _group() -> None:
    """Show or change which versions and variants answer, while the server runs.

    An arm is a version, a variant (fused or unfused), or both: 3, fused, 3/fused.

    The server needs an admin port: FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""


def get(
    admin: AdminClient,
    *,
    model: Model = "",
    as_json: Json = False,
) -> None:
    """Show the policies in force."""
    _show(admin.policies(model), as_json)
    for line in () if model or as_json else admin.unknown_models():
        typer.echo(line, err=True)


def change(
    admin: AdminClient,
    *,
    model: Model = "",
    version: Annotated[
        str | None, _option(_ANSWERS, "N|latest|previous|LABEL", "The version of requests that name none.")
    ] = None,
    variant: Annotated[
        str | None, _option(_ANSWERS, "fused|unfused", "The variant of requests that name none.")
    ] = None,
    split: Annotated[
        float | None, _option(_ANSWERS, "0..1", "Share of these requests for the other variant.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        _option(_ANSWERS, "ARM=SHARE", "Share of another arm, such as 3/fused=0.1. May be repeated."),
    ] = None,
    no_arms: Annotated[
        bool, _option(_ANSWERS, None, "Take away the shares of all other arms.", "--no-arms")
    ] = False,
    label: Annotated[
        list[str] | None,
        _option(_ANSWERS, "LABEL=N", "Name a version; LABEL= removes the label. May be repeated."),
    ] = None,
    allow_override: Annotated[
        bool | None, _option(_REQUEST, None, "Whether a request may name its variant.", show_default=False)
    ] = None,
    shadow: Annotated[
        float | None,
        _option(_SHADOW, "0..1", "Share of the batches to run on both variants, to compare the outputs."),
    ] = None,
    shadow_arm: Annotated[
        str | None,
        _option(_SHADOW, "ARM", "An arm to compare with, in place of the other variant; '': none."),
    ] = None,
    on_mismatch: Annotated[
        str | None, _option(_SHADOW, "log|unfused", "What to do when the variants' outputs differ.")
    ] = None,
    versions: Annotated[
        str | None, _option(_RESOURCES, "all|latest:N|N,...", "Which versions of the repository to serve.")
    ] = None,
    weight: Annotated[
        float | None,
        _option(_RESOURCES, "0.01..1000", "Its share of the CPU time, relative to other models."),
    ] = None,
    precision: Annotated[
        str | None,
        _option(
            _RESOURCES,
            "|".join(PRECISIONS),
            "How the weights of float32 versions are kept. The error is measured and bounded.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the given fields of a policy; the others stay as they are.

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
        from fused_mlp.service.cli.rendering import policy_table

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
