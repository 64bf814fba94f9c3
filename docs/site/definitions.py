# SPDX-License-Identifier: Apache-2.0
"""Where a name of the code is defined, so that pages can lead to it and a test sees when it is gone."""

from __future__ import annotations

import ast
import re

_NAME = re.compile(r"~?[A-Za-z_]\w*(?:(?:\.|::)~?\w+)*(?:\(\))?")
_CPP = (".cpp", ".hpp", ".h", ".cu", ".cc")


def is_name(text: str, path: str) -> bool:
    """Whether the text of a link to this file means something in it, not the file itself."""
    is_code = path.endswith((".py", *_CPP))
    return is_code and bool(_NAME.fullmatch(text)) and not path.endswith(text)


def line_of(name: str, path: str, source: str) -> int | None:
    """The line that defines `Class`, `function`, `Class.method` (Python) or `Class::method` (C++), from 1."""
    name = name.removesuffix("()")
    if path.endswith(".py"):
        return _line_in_python(name.split("."), ast.parse(source).body)
    return _line_in_cpp(name, source)


def _line_in_python(names: list[str], body: list[ast.stmt]) -> int | None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == names[0]:
            return node.lineno if len(names) == 1 else _line_in_python(names[1:], node.body)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if len(names) == 1 and any(isinstance(one, ast.Name) and one.id == names[0] for one in targets):
            return node.lineno
    return None


def _line_in_cpp(name: str, source: str) -> int | None:
    """By the look of the line: a type, or a function whose line does not end as a call or a declaration does."""
    scope, _, last = name.rpartition("::")
    before, after = r"[\w:<>,&* \[\]~]*", r"\([^;{\n]*(?:\{.*)?$"
    patterns = [
        rf"^ *(?:template *<.*> *)?(?:class|struct|enum class|enum|union) +{last}\b[^;\n]*$",
        rf"^(?! *(?:return|throw|else)\b){before}(?<![\w:]){name} *{after}",
    ]
    if scope:  # defined in the body of its class
        patterns.append(rf"^  (?!return\b){before}(?<![\w:]){last} *\(.*\{{")
    for pattern in patterns:
        if match := re.search(pattern, source, re.MULTILINE):
            return source.count("\n", 0, match.start()) + 1
    return None
