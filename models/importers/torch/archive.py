# SPDX-License-Identifier: Apache-2.0
"""What makes a .pt2 archive safe to read. torch.export.load falls back to plain pickle, and evaluates the expressions
of sizes as Python: both are kept from running code that a file brings along."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.torch.export import quietly

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
# Objects that are no tensors, which torch unpickles without limits.
_OBJECTS = re.compile(r"/constants/(?!tensor_)[^/]*$")
# The names in an expression of sizes: symbols, and functions of sympy. Builtins of Python begin with small letters.
_NAME = re.compile(r"[A-Za-z_]\w*")
_HARMLESS = re.compile(
    r"([suz]\d+|zu?f\d+|[A-Z][A-Za-z]*|and|or|not|positive|nonnegative|integer|real|finite)$"
)
_MAX_JSON = 64 << 20


@contextmanager
def only_tensors(path: Path) -> Iterator[None]:
    """Refuses an archive that holds more than tensors and a graph; torch loads nothing else within."""
    _check(path)
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with quietly():
            yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def _check(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise ModelLoadError(f"{path}: not a .pt2 file: expected an archive of torch.export.save")
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if _OBJECTS.search(entry.filename) and not entry.filename.endswith(".json"):
                raise ModelLoadError(f"{path}: {entry.filename} is a Python object, which is not loaded")
            if entry.filename.endswith(".json"):
                if entry.file_size > _MAX_JSON:
                    raise ModelLoadError(f"{path}: {entry.filename} is too large for the graph of an MLP")
                for text in _expressions(json.loads(archive.read(entry))):
                    if "__" in text or not all(map(_HARMLESS.match, _NAME.findall(text))):
                        raise ModelLoadError(f"{path}: {text[:60]!r} is no expression of sizes")


def _expressions(content: Any) -> Iterator[str]:
    """Every string under a key `expr_str`, wherever it is."""
    pending = [content]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            for key, value in each.items():
                if key == "expr_str" and isinstance(value, str):
                    yield value
                pending.append(value)
        elif isinstance(each, list):
            pending.extend(each)


def check_targets(program: torch.export.ExportedProgram) -> None:
    """A graph may name any function below torch; only its operators are run."""
    graphs = [each.graph for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    for graph in graphs:
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            target = node.target
            known = isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator))
            home = getattr(target, "__module__", "") or ""
            if not known and home not in ("_operator", "operator", "math") and not _is_size_function(target):
                raise ModelLoadError(f"its graph calls {target}, which is no operator of torch")


def _is_size_function(target: Any) -> bool:
    name = getattr(target, "__name__", "")
    return name.startswith("sym_") and getattr(torch, name, None) is target
