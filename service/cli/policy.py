"""`fused-mlp policy get|set` reads and changes the policies of a running server, over its admin port."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, cast, get_args

import typer

from fused_mlp.service.cli.connection import connected_to_admin
from fused_mlp.service.client.admin import AdminClient, OnMismatch, PolicyInfo, Precision
from fused_mlp.service.variant import Variant

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

PRECISIONS: tuple[str, ...] = get_args(Precision)
_MODEL = typer.Argument(help="Name of the model; all of them if not given.")
_JSON = typer.Option("--json", help="Print JSON.")


@app.callback()
def _group() -> None:
    """Say or change which variant answers, a model's share of the time and its precision, while the server runs.

    The server needs an admin port: FUSED_MLP_ADMIN_PORT=8003 fused-mlp serve"""


def get(
    admin: AdminClient,
    *,
    model: Annotated[str, _MODEL] = "",
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show the policies in force."""
    _show(admin.policies(model), as_json)


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
    versions: Annotated[
        str | None,
        typer.Option(metavar="all|latest:N|N,...", help="Which versions of the repository are served."),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Change what is given and leave the rest as it is.

    For example: fused-mlp policy set digits --split 0.1 --shadow 0.01"""
    _check("--variant", variant, ("fused", "unfused"))
    _check("--on-mismatch", on_mismatch, ("log", "unfused"))
    _check("--precision", precision, PRECISIONS)
    given = (variant, split, allow_override, shadow, on_mismatch, weight, precision, versions)
    if all(value is None for value in given):
        raise typer.BadParameter(
            "give at least one of --variant, --split, --allow-override, --shadow, --on-mismatch, --weight, "
            "--precision, --versions"
        )
    policies = admin.set_policy(
        model,
        variant=cast("Variant | None", variant),
        split=split,
        allow_override=allow_override,
        shadow=shadow,
        on_mismatch=cast("OnMismatch | None", on_mismatch),
        weight=weight,
        precision=cast("Precision | None", precision),
        versions=versions,
    )
    _show(policies, as_json)


def _check(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise typer.BadParameter(f"{option}: expected {expected}, got {value!r}")


def _show(policies: list[PolicyInfo], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(policy) for policy in policies]))
        return
    from fused_mlp.service.cli.rendering import policy_table, print_table

    print_table(policy_table(policies))


app.command("get")(connected_to_admin(get))
app.command("set")(connected_to_admin(change))
