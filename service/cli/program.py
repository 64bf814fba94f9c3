# SPDX-License-Identifier: Apache-2.0
"""The commands of `fused-mlp`, and their help. A command's module is imported when that command runs, not to list the
commands: its imports may be slow or not installed."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fused_mlp.service.cli.failure import ExitCode, fail
from fused_mlp.service.cli.interruption import leave

_SERVE, _MODELS, _COMPARE, _MACHINES = (
    "Serve and call",
    "Models and versions",
    "Compare and change",
    "Machines",
)
# In the order of --help: the module of each command (and its function, if not `command`), the first paragraph of its
# own help, and its panel.
COMMANDS = {
    "serve": ("serve", "Serve the models of a repository until SIGTERM or Ctrl-C.", _SERVE),
    "predict": ("predict", "Run a model on rows of numbers.", _SERVE),
    "models": ("models", "List the models of a server, or describe one.", _SERVE),
    "health": (
        "health",
        "Check whether a server, or one of its models, is serving: exit code 0 if it is, 1 if not.",
        _SERVE,
    ),
    "import": ("import_model", "Import a model file into a repository, as a new version.", _MODELS),
    "load": ("versions:load", "Load new and changed versions of a model from the repository.", _MODELS),
    "unload": ("versions:unload", "Stop serving a model, until it is loaded again.", _MODELS),
    "pin": ("versions:pin", "Choose the version that answers requests which name none.", _MODELS),
    "rollback": ("versions:rollback", "Go back to the version below the default one, and pin it.", _MODELS),
    "ab": ("ab", "Compare the fused with the unfused variant, or two versions, under load.", _COMPARE),
    "policy": (
        "policy",
        "Show or change which versions and variants answer, while the server runs.",
        _COMPARE,
    ),
    "canary": (
        "canary",
        "Move a model's traffic to another version step by step, and back at once if that is worse.",
        _COMPARE,
    ),
    "profile": (
        "profile",
        "Profile an MLP: eager PyTorch, torch.compile and the fused kernel, side by side.",
        _COMPARE,
    ),
    "keys": ("keys", "Make, list and revoke the keys with which callers are known to a server.", _MACHINES),
    "warm": (
        "warm",
        "Compile the CUDA kernels of all models of a repository, so that a server starts without compiling.",
        _MACHINES,
    ),
    "ray": ("ray", "Run and scale replicas of the server on a Ray cluster.", _MACHINES),
}
# typer brings click under different names, depending on its version.
_ClickError: type[Exception] = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)


class LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command's name and help, for the list of commands."""
        _, summary, panel = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=summary, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, to run it."""
        name = args[0]
        if name not in COMMANDS:
            close = get_close_matches(name, COMMANDS)
            hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}; {hint}")
        return name, load_command(name), args[1:]

    def get_params(self, ctx: Any) -> list[Any]:
        return [readable(param) for param in super().get_params(ctx)]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise leave(error) from None

    def main(
        self, args: Any = None, prog_name: Any = None, complete_var: Any = None, *_: Any, **more: Any
    ) -> Any:
        """A usage error is one line, like other errors."""
        more["standalone_mode"] = False
        try:
            code = super().main(args, prog_name, complete_var, **more)
        except _ClickError as error:
            if not (text := _mistake(error)):  # the help of a group was printed
                sys.exit(ExitCode.USAGE)
            fail(text, ExitCode.USAGE)
        sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def load_command(name: str) -> Any:
    """Imports the module of a command."""
    place, _, function = COMMANDS[name][0].partition(":")
    module = import_module(f"fused_mlp.service.cli.commands.{place}")
    if hasattr(module, "app"):  # a group of commands
        command = get_command(module.app)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(name)(getattr(module, function or "command"))
        command = get_command(single)
    command.name = name
    _tidy(command)
    return command


def _tidy(command: Any) -> None:
    """Joins the lines of a paragraph: terminals differ in width from the source."""
    command.help = re.sub(r"(?<=\S)\n[ \t]*(?=\S)", " ", command.help or "")
    params = command.get_params
    command.get_params = lambda ctx: [readable(param) for param in params(ctx)]
    for each in getattr(command, "commands", {}).values():
        _tidy(each)


def readable(param: Any) -> Any:
    """Removes typer's notes on types (`<bool>`), which do not help users."""
    if param.metavar is None and getattr(param, "is_flag", False):
        param.metavar = ""
    elif param.metavar is None:
        param.metavar = param.name.rpartition("_")[2].upper()
    return param


def _mistake(error: Any) -> str:
    """The error as one line. Empty for a group without a command."""
    text: str = error.format_message().rstrip(".").removeprefix("Invalid value: ")
    if close := getattr(error, "possibilities", None):
        text = (
            f"{text.partition('(')[0].partition('Did you')[0].strip().rstrip('.')}; did you mean {close[0]}?"
        )
    text = text.replace(". Did you mean", "; did you mean")
    place = f" (see {error.ctx.command_path} --help)" if getattr(error, "ctx", None) else ""
    return text + place if text else ""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fused-mlp {version('fused-mlp')}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: {', '.join(f'{code:d} {code.brief}' for code in ExitCode)}.",
)


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve multi-layer perceptrons over gRPC and REST, and talk to such a server."""
