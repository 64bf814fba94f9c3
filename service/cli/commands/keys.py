# SPDX-License-Identifier: Apache-2.0
"""`fused-mlp keys new | list | revoke`: edits the file of FUSED_MLP_KEYS. A running server rereads it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fused_mlp.service.access import audit
from fused_mlp.service.access.key_file import ActionName, CallerEntry, changing, new_key, read_key_file
from fused_mlp.service.cli.failure import fail, misuse
from fused_mlp.service.cli.options import option, seconds_of_option
from fused_mlp.service.cli.output.result import Json, show

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    help="Make, list and revoke the keys with which callers are known to a server.",
)

File = Annotated[Path, option("The server's file of keys.", "FILE", "--file", "-f", envvar="FUSED_MLP_KEYS")]
_LIMITS = "Quotas"


def _limit(help_text: str) -> Any:
    return option(help_text, "N", panel=_LIMITS)


@app.command()
def new(
    *,
    name: Annotated[str, typer.Argument(help="Name of the caller, in metrics and in the audit log.")],
    file: File,
    models: Annotated[str, option("Models it may use; * is any text, ? one character.", "PATTERN,...")] = "*",
    actions: Annotated[
        str, option(f"What it may do: {', '.join(get_args(ActionName))}.", "ACTION,...")
    ] = "predict,describe",
    expires_in: Annotated[str | None, option("When the key ends. If not given, never.", "12h|90d")] = None,
    requests_per_s: Annotated[float | None, _limit("Requests per second.")] = None,
    rows_per_s: Annotated[float | None, _limit("Rows per second.")] = None,
    max_in_flight: Annotated[int | None, _limit("Requests at the same time.")] = None,
    weight: Annotated[float, _limit("Share of a busy model, relative to other callers.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Make a key. It is printed once; the file keeps only its SHA-256.

    With the name of a caller that has a key, this makes a second one: give it to the caller, then revoke the first."""
    key, digest = new_key()
    expires = None
    if expires_in is not None:
        lasts_s = seconds_of_option("--expires-in", expires_in)
        expires = (datetime.now(UTC) + timedelta(seconds=lasts_s)).replace(microsecond=0)
    try:
        entry = CallerEntry.model_validate(
            {
                "name": name,
                "sha256": digest,
                "models": _split(models),
                "actions": _split(actions),
                "expires": expires,
                "requests_per_s": requests_per_s,
                "rows_per_s": rows_per_s,
                "max_in_flight": max_in_flight,
                "weight": weight,
            }
        )
    except ValueError as error:
        misuse(_first_problem(error))
    with _recorded("new_key", name, entry.key_id), changing(file) as callers:
        callers.append(entry)
    show({"key": key, **_shown(entry)}, as_json, lambda: key)


@app.command("list")
def list_keys(*, file: File, as_json: Json = False) -> None:
    """List the callers of the file: what they may do, their quotas, and when their keys end."""
    try:
        callers = read_key_file(file).callers
    except (OSError, ValueError) as error:
        fail(str(error))

    def view() -> RenderableType:
        from rich.table import Table

        table = Table("name", "id", "actions", "models", "expires", "quotas", box=None)
        for entry in callers:
            shown = _shown(entry)
            table.add_row(
                entry.name,
                entry.key_id or ", ".join((*entry.certificates, *entry.subjects)),
                ", ".join(entry.actions),
                ", ".join(entry.models),
                f"{shown['expires'] or 'never'}{' (expired)' if entry.expired else ''}",
                ", ".join(f"{limit} {value:g}" for limit, value in shown["quotas"].items()),
            )
        return table

    show([_shown(entry) for entry in callers], as_json, view)


@app.command()
def revoke(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="All keys of a caller, or one by its id.")],
    file: File,
    as_json: Json = False,
) -> None:
    """Take keys out of the file. A running server refuses them within two seconds."""
    with _recorded("revoke_key", name), changing(file) as callers:
        revoked = [entry for entry in callers if name and name in (entry.name, entry.key_id)]
        if not revoked:
            raise ValueError(f"{file}: expected the name of a caller or the id of a key, got {name[:100]!r}")
        callers[:] = [entry for entry in callers if entry not in revoked]
    show(
        [_shown(entry) for entry in revoked],
        as_json,
        lambda: "\n".join(f"revoked {entry.name} {entry.key_id}" for entry in revoked),
    )


@contextmanager
def _recorded(action: str, name: str, key_id: str = "") -> Iterator[None]:
    """Ends the command in one line if the file cannot be changed. The audit log has the attempt."""
    path = os.environ.get("FUSED_MLP_AUDIT_LOG")
    try:
        file = audit.AuditFile(Path(path)) if path else None
    except OSError as error:
        fail(f"FUSED_MLP_AUDIT_LOG={path}: cannot be written: {error.strerror}")
    error_text = ""
    try:
        yield
    except (OSError, ValueError) as error:
        error_text = str(error)
    if file is not None:
        result = "FAILED_PRECONDITION" if error_text else "OK"
        what = f"{name} {key_id}".strip()
        audit.record(action, who=f"user:{_user()}", arguments=what, result=result, error=error_text)
        file.close()
    if error_text:
        fail(error_text)


def _user() -> str:
    """Of the process: the environment may claim another one. Containers run as users without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _first_problem(error: ValueError) -> str:
    """An error of pydantic, in one line."""
    first = error.errors()[0]  # type: ignore[attr-defined]
    option = "NAME" if first["loc"][:1] == ("name",) else f"--{str(first['loc'][0]).replace('_', '-')}"
    return f"{option}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {str(first['input'])[:100]!r}"


def _shown(entry: CallerEntry) -> dict[str, Any]:
    limits = {name: getattr(entry, name) for name in ("requests_per_s", "rows_per_s", "max_in_flight")}
    weight = {"weight": entry.weight} if entry.weight != 1 else {}
    return {
        "name": entry.name,
        "id": entry.key_id,
        "actions": entry.actions,
        "models": entry.models,
        "expires": entry.expires.isoformat() if entry.expires else None,
        "expired": entry.expired,
        "quotas": {name: value for name, value in limits.items() if value is not None} | weight,
    }
