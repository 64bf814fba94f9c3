# SPDX-License-Identifier: Apache-2.0
"""Tables of the reference, from the code: settings, limits, options of commands, exit codes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.docs.markdown import table
from bench.docs.registry import Results, figure
from fused_mlp.service.cli.failure import ExitCode
from fused_mlp.service.cli.program import COMMANDS, load_command, readable
from fused_mlp.service.settings.docs import SettingDoc, setting_docs
from fused_mlp.service.settings.limits import Limits

_CONNECTION = "Connection"
_PAGES = Path("docs/operations")  # of settings.md, from which descriptions link to other pages
_OTHER_PAGE = re.compile(r"\bdocs/(\S+?\.md)\b")


@cache
def commands() -> Mapping[str, Any]:
    """Every runnable command by name, `policy set` included."""
    return dict(_commands())


def _commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = load_command(name)
        for sub, each in getattr(command, "commands", {"": command}).items():
            yield f"{name} {sub}".strip(), each


@figure("settings")
def settings_table(_: Results) -> str:
    """Every setting: its variable, its default, what it does."""
    return "\n\n".join(
        f"### {group}\n\n{_settings('variable', ((doc.env, doc) for doc in docs))}"
        for group, docs in groupby(setting_docs(), key=lambda doc: doc.group)
    )


@figure("limits")
def limits_table(_: Results) -> str:
    """The fields of FUSED_MLP_LIMITS."""
    return _settings("field", ((doc.name, doc) for doc in setting_docs(Limits)))


def _settings(heading: str, docs: Iterable[tuple[str, SettingDoc]]) -> str:
    rows = (
        (
            f"`{name}`",
            f"`{doc.default}`" if doc.default else "",
            _OTHER_PAGE.sub(_link, _cell(doc.description)),
        )
        for name, doc in docs
    )
    return table((heading, "default", "what it does"), rows, left=3)


def _link(named: re.Match[str]) -> str:
    return f"[{named[1]}]({os.path.relpath(Path('docs') / named[1], _PAGES)})"


@figure("exit-codes")
def exit_codes(_: Results) -> str:
    """The exit codes of all commands."""
    return table(("code", "meaning"), ((f"{code:d}", code.text) for code in ExitCode), left=2)


@figure("connection")
def connection(_: Results) -> str:
    """The options of a command that talks to the admin port."""
    return _options(param for param in commands()["load"].params if _panel(param) == _CONNECTION)


def _register(name: str, command: Any) -> None:
    @figure(f"options-{name.replace(' ', '-')}")
    def options(_: Results) -> str:
        """The arguments and options of a command, without those of the connection."""
        own = [param for param in command.params if _panel(param) != _CONNECTION]
        if len(own) == len(command.params):
            return _options(own)
        target = next(param for param in command.params if param.name == "target")
        default = f" The default of `--target` is `{target.default}`." if target.default else ""
        return f"{_options(own)}\n\nAnd [the options of the connection](#the-connection).{default}"


for _name, _command in commands().items():
    if _name != "serve":  # its options are the settings
        _register(_name, _command)


def _options(params: Iterable[Any]) -> str:
    rows = []
    for param in map(readable, params):
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        given = param.metavar or ""
        if param.param_type_name == "argument":
            names = f"`{given}`"
        else:
            spelled = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda each: each[1] == "-"))
            names = f"`{spelled} {given}".rstrip() + "`"
        text = param.help or ""
        if param.envvar:
            text += f" Variable: `{param.envvar}`."
        rows.append((_cell(names), _default(param), _cell(text)))
    return table(("argument or option", "default", "what it does"), rows, left=3)


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = param.default
    if value == "" or isinstance(value, bool) or not isinstance(value, str | int | float | Path):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _panel(param: Any) -> str | None:
    return getattr(param, "rich_help_panel", None)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
