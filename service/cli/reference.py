# SPDX-License-Identifier: Apache-2.0
"""Writes what docs/operations/commands.md says of options, JSON keys and exit codes, from the code:
`python -m fused_mlp.service.cli.reference --write`. The rest of the page is written by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fused_mlp.service.cli.exit_codes import ExitCode
from fused_mlp.service.cli.json_keys import DOCUMENTS
from fused_mlp.service.cli.program import COMMANDS, load_command, readable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "commands.md"
_CONNECTION = "Connection"
_PAIR = re.compile(
    r"(<!-- (options|json|connection|exit codes)(?:: ([\w ]+))? -->\n).*?(<!-- /\2 -->)", re.DOTALL
)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, `policy set` among them."""
    for name in COMMANDS:
        command = load_command(name)
        for sub, each in getattr(command, "commands", {"": command}).items():
            yield f"{name} {sub}".strip(), each


def filled(page: str) -> str:
    """The page with all generated parts anew."""
    known = dict(commands())

    def fill(match: re.Match[str]) -> str:
        begin, kind, name, end = match.groups()
        if kind == "exit codes":
            lines = ["| code | meaning |", "|---|---|", *(f"| {code:d} | {code.text} |" for code in ExitCode)]
        elif kind == "connection":
            admin = [param for param in known["load"].params if _panel(param) == _CONNECTION]
            lines = _options(admin)
        elif kind == "json":
            shape, keys = DOCUMENTS[name]
            lines = [f"`--json`: {shape[0].lower()}{shape[1:]}", "", "| key | value |", "|---|---|"]
            lines += [f"| `{key}` | {text} |" for key, text in keys.items()]
        else:
            own = [param for param in known[name].params if _panel(param) != _CONNECTION]
            lines = _options(own)
            if len(own) < len(known[name].params):
                lines += ["", _connection_line(known[name])]
        return begin + "\n" + "\n".join(lines) + "\n\n" + end

    return _PAIR.sub(fill, page)


def _options(params: list[Any]) -> list[str]:
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
        rows.append(f"| {_cell(names)} | {_default(param)} | {_cell(text)} |")
    return ["| argument or option | default | what it does |", "|---|---|---|", *rows]


def _connection_line(command: Any) -> str:
    target = next(param for param in command.params if param.name == "target")
    default = f" The default of `--target` is `{target.default}`." if target.default else ""
    return f"And [the options of the connection](#the-connection).{default}"


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
    return text.replace("|", "\\|")


def main() -> None:
    text = PAGE.read_text()
    new = filled(text)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(new)
    elif new != text:
        sys.exit(f"{PAGE} is not current: python -m fused_mlp.service.cli.reference --write")


if __name__ == "__main__":
    main()
