"""How a command ends badly: one line on stderr that says what to do, and exit code 1."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(1)
