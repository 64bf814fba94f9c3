"""The command line, `fused-mlp`. A command's module is imported when that command is asked for: `health` runs
every few seconds in a container and must not wait for what only `serve` needs. Nothing here imports torch."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

# In the order of --help: where each command lives.
COMMANDS = {
    "serve": "fused_mlp.service.cli.serve",
    "predict": "fused_mlp.service.cli.predict",
    "models": "fused_mlp.service.cli.models",
    "import": "fused_mlp.service.cli.import_model",
    "profile": "fused_mlp.service.cli.profile",
    "health": "fused_mlp.service.cli.health",
    "ab": "fused_mlp.service.cli.ab",
    "policy": "fused_mlp.service.cli.policy",
}


class LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            close = get_close_matches(cmd_name, COMMANDS)
            hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {cmd_name!r}; {hint}")
        module = import_module(COMMANDS[cmd_name])
        if hasattr(module, "app"):  # has commands of its own
            group = get_command(module.app)
            group.name = cmd_name
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(cmd_name)(module.command)
        return get_command(single)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fused-mlp {version('fused-mlp')}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve multi-layer perceptrons over gRPC, and talk to such a server."""


def main() -> None:
    app(prog_name="fused-mlp")
