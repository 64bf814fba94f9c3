# SPDX-License-Identifier: Apache-2.0
"""Where a node of a graph comes from: the layer and the user's own line, as error texts name them."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.fx import Node

from fused_mlp.models.importers.building.nodes import Place

_NOT_THEIRS = (str(Path(torch.__file__).parent), "torch/", str(Path(__file__).resolve().parents[1]))
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]+\n\s*([^\n]+)')
_LONGEST_LINE = 80


def place_of(node: Node, name: str, prefix: str) -> Place:
    """`name`: of the operator. `prefix`: in front of the paths of all modules."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = "", ""
    for each in stack.values():
        if isinstance(each, tuple) and len(each) == 2 and f"{each[0]}.".startswith(prefix):
            path = str(each[0])
            kind = each[1] if isinstance(each[1], str) else each[1].__qualname__
    path = path.removeprefix(prefix.rstrip(".")).lstrip(".")
    path = re.sub(r"@\d+$", "", path)  # of a module's second call
    leaf = kind.startswith("torch.nn.modules.") or name == "linear"
    label = kind.rpartition(".")[2]
    own = f"{path}.{name}" if path else name
    where = f"layer {path}: {label}" if leaf and path else f"{path or label or 'the model'}: {name}"
    return Place(where, path if leaf and path else own, _source_line(node))


def layers_of(node: Node) -> list[str]:
    """The types of the modules that a node is part of."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    kinds = [each[1] for each in stack if isinstance(each, tuple) and len(each) == 2]
    return [kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]


def _source_line(node: Node) -> str:
    """The user's own line that led to a node: the innermost one outside torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not _is_ours(frame[0])]
    if not own:
        return ""
    path, number, code = own[-1]
    code = code if len(code) <= _LONGEST_LINE else f"{code[: _LONGEST_LINE - 3]}..."
    return f"{Path(path).name}:{number}, `{code}`"


def _is_ours(path: str) -> bool:
    return path.startswith(_NOT_THEIRS) or str(Path(path).resolve()).startswith(_NOT_THEIRS)
