# SPDX-License-Identifier: Apache-2.0
"""Each setting, and each field of FUSED_MLP_LIMITS, in words: the source of `fused-mlp serve --help` and of the tables
in docs/operations/settings.md."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import ENV_PREFIX, GROUPS, CallerFiles, Settings

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class SettingDoc:
    name: str
    group: str
    default: str  # empty if the description has the default
    values: str  # `a|b`, or the kind of value
    description: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


def setting_docs(record: type[Settings | Limits] = Settings) -> Iterator[SettingDoc]:
    """Every setting in order, with the heading it stands under; or every field of the limits."""
    group, texts = "", _texts(record)
    for name, field in record.model_fields.items():
        group = GROUPS.get(name, group)
        yield SettingDoc(
            name=name,
            group=group,
            default=_default(field.default),
            values=_values(field.annotation),
            description=texts.get(name, ""),
        )


def _texts(record: type[Settings | Limits]) -> dict[str, str]:
    """The text below each field, read from the source; none where only compiled files are installed. (pydantic's own
    reader of these texts slows every start down.)"""
    try:
        (tree,) = ast.parse(dedent(inspect.getsource(record))).body
    except OSError:
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def _default(value: object) -> str:
    if value is None or value in ({}, Limits(), CallerFiles()):
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, str) and Path(value).is_relative_to(PACKAGE_ROOT):
        return str(Path(value).relative_to(PACKAGE_ROOT))  # the same wherever it is installed
    return f"{value:g}" if isinstance(value, float) else str(value)


_LONGEST_VALUES = 20  # a wider column would cut others at 80


def _values(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return "|".join(_values(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    if get_origin(annotation) is dict or annotation in (Limits, CallerFiles):
        return "JSON"
    if get_origin(annotation) is Literal:
        words = "|".join(map(str, get_args(annotation)))
        return words if len(words) <= _LONGEST_VALUES else "NAME"  # which the description then has
    return {int: "INT", float: "NUM", bool: "0|1", str: "TEXT", Path: "PATH"}[annotation]
