# SPDX-License-Identifier: Apache-2.0
"""The commands of `fused-mlp`, and their help. The module of a command is imported when that command runs, not for
the list of commands: what it needs may be slow to import, or not installed."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

# In the order of --help: the module of each command (and its function, if not `command`), and the first paragraph of
# its own help.
COMMANDS = {
    "serve": ("serve", "Serve the models of a repository until SIGTERM or Ctrl-C."),
    "predict": ("predict", "Run a model on rows of numbers."),
    "models": ("models", "List the models of a server, or describe one."),
    "load": ("versions:load", "Serve what the repository holds of a model now."),
    "unload": ("versions:unload", "Stop serving a model, until it is loaded again."),
    "pin": ("versions:pin", "Say which version answers requests that name none."),
    "rollback": ("versions:rollback", "Go back to the version below the default one, and pin it."),
    "import": ("import_model", "Import a model file into a repository, as a new version."),
    "profile": (
        "profile",
        "Profile an MLP: eager PyTorch, torch.compile and the fused kernel, side by side.",
    ),
    "warm": (
        "warm",
        "Compile the CUDA kernels of all models of a repository, so that a server starts without compiling.",
    ),
    "health": (
        "health",
        "Say whether a server, or one of its models, is serving: exit code 0 if it is, 1 if not.",
    ),
    "ab": ("ab", "Compare both variants, or two arms, under live-like load, and say what came of it."),
    "policy": (
        "policy",
        "Say or change which arms answer, a model's share of the time and its precision, while the server runs.",
    ),
    "canary": (
        "canary",
        "Move the traffic of a model to another arm step by step, and back at once if that is worse.",
    ),
    "ray": (
        "ray",
        "Run replicas of the server on a Ray cluster: places them, restarts the dead, scales by utilization.",
    ),
}


class LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For the list of commands: a name and a text."""
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """For running it: the command itself."""
        name = args[0]
        if name not in COMMANDS:
            close = get_close_matches(name, COMMANDS)
            hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}; {hint}")
        place, _, function = COMMANDS[name][0].partition(":")
        module = import_module(f"fused_mlp.service.cli.{place}")
        if hasattr(module, "app"):  # has commands of its own
            command = get_command(module.app)
        else:
            single = typer.Typer(add_completion=False, rich_markup_mode="rich")
            single.command(name)(getattr(module, function or "command"))
            command = get_command(single)
        command.name = name
        return name, command, args[1:]


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
