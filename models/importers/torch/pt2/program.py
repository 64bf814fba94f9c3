# SPDX-License-Identifier: Apache-2.0
"""A file of torch.export.save as a module: the file's tensors, and an interpreter of its parsed graph. Sizes come from
running it, so that the symbolic expressions of the file are never read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from torch import Tensor, fx, nn
from torch.fx.traceback import preserve_node_meta

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.torch.arguments import Arguments, positional
from fused_mlp.models.importers.torch.aten.refusals import writes_to
from fused_mlp.models.importers.torch.bounds import MAX_VALUES, bounded
from fused_mlp.models.importers.torch.pt2.archive import GRAPH, Archive
from fused_mlp.models.importers.torch.pt2.graph import DTYPES, GraphParser
from fused_mlp.models.importers.torch.pt2.operators import check_kinds
from fused_mlp.models.importers.torch.tensors import to_tensor
from fused_mlp.models.program.inputs import MAX_INPUTS

_SCHEMA = 8  # the major version of torch's schema
_MAX_DEPTH = 32  # of modules within modules
_MAX_PARTS = 1 << 18  # that one operator splits a value into
_MAX_INTEGER = 1 << 62
_OWN_NAMES = {
    "parameter": "parameter_name",
    "buffer": "buffer_name",
    "tensor_constant": "tensor_constant_name",
}


class ExportedModule(nn.Module):
    """The tensors lie under their own names, in modules of their own."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self._parsed_graph = graph

    def forward(self, *rows: Tensor) -> Any:
        interpreter = _Interpreter(self, graph=self._parsed_graph)
        interpreter.extra_traceback = False  # it would put lines of its own into our errors
        # torch.export traces it: nothing is allocated, and nodes keep where they come from.
        if any(type(each) is not Tensor for each in rows):
            with preserve_node_meta():
                return interpreter.run(*rows)
        with bounded():
            return interpreter.run(*rows)


class _Interpreter(fx.Interpreter):
    """Checks what bounds.py does not see: lists of parts, integers, and kinds of arguments."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if (
            isinstance(target, torch._ops.OpOverload)
            and str(target._schema.returns[0].type) == "List[Tensor]"
        ):
            counts = [*args[0].shape, *args[1:], *kwargs.values()]
            if any(
                isinstance(each, Tensor) or (isinstance(each, int) and each > _MAX_PARTS) for each in counts
            ):
                raise ModelLoadError(f"{target}: it makes more than {_MAX_PARTS} parts of a value")
        check_kinds(target, args, kwargs)
        made = target(*args, **kwargs)
        if isinstance(made, int) and abs(made) > _MAX_INTEGER:
            raise ModelLoadError("it computes with sizes above 2**62")
        return made


def read_program(path: Path) -> tuple[ExportedModule, Arguments]:
    """The module, and an example of what it takes."""
    with Archive(path) as archive:
        document = archive.json(GRAPH)
        if (major := document["schema_version"]["major"]) != _SCHEMA:
            raise ModelLoadError(
                f"expected a schema of version {_SCHEMA}, got {major}: save it with another torch"
            )
        tensors = {**archive.tensors("constants"), **archive.tensors("weights")}
    program = document["graph_module"]
    parser = GraphParser()
    module = ExportedModule(parser.graph)
    names: list[str] = []
    rows: list[Tensor] = []
    for spec, given in zip(program["signature"]["input_specs"], program["graph"]["inputs"], strict=True):
        ((kind, about),) = spec.items()
        if kind in _OWN_NAMES:
            name = str(about[_OWN_NAMES[kind]])
            _register(module, name, to_tensor(tensors[name]), trained=kind == "parameter")
            parser.declare(given["as_tensor"]["name"], parser.graph.get_attr(name), has_rows=False)
        elif kind == "user_input" and "as_tensor" in given:
            name = given["as_tensor"]["name"]
            rows.append(_rows(program["graph"]["tensor_values"][name]))
            names.append(name)
            parser.declare(name, parser.graph.placeholder(f"x{len(names)}"), has_rows=True)
        else:
            raise ModelLoadError(f"it takes a {str(kind)[:40]}: expected a program of tensors of rows")
    if not 0 < len(rows) <= MAX_INPUTS:
        raise ModelLoadError(
            f"expected a program of 1 to {MAX_INPUTS} tensors of rows, got {len(rows)} inputs"
        )
    _check_outputs(program["signature"]["output_specs"])
    parser.graph.output(_structured(program, parser.read(program["graph"])))
    _try_sizes(module, rows)
    return module, positional([key or name for key, name in zip(_keys(program), names, strict=True)], rows)


def _keys(program: Any) -> Iterator[str]:
    """For each input the key of the dict that it is in, or "" if it is in none."""
    entry = next(each for each in program["module_call_graph"] if each["fqn"] == "")
    _, spec = from_json(entry["signature"]["in_spec"])

    def walk(each: Any, key: str) -> Iterator[str]:
        if each["type"] is None:
            yield key
            return
        inside = each["children_spec"]
        keys = [key] * len(inside)
        if each["type"] in ("builtins.dict", "collections.OrderedDict"):
            keys = [str(name) for name in from_json(each["context"])]
        for name, child in zip(keys, inside, strict=True):
            yield from walk(child, name)

    yield from walk(spec, "")


def _try_sizes(module: ExportedModule, rows: Sequence[Tensor]) -> None:
    """Sizes may depend on the number of rows in any way. Readers take them for one row, after they have seen that two
    rows have twice as many."""
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
    for count in (1, 2):
        with (
            contextlib.suppress(ArithmeticError, LookupError, RuntimeError, TypeError, ValueError),
            torch.no_grad(),
        ):
            given = [each.to(dtype) if each.is_floating_point() else each for each in rows]
            module(*(each.expand(count, *each.shape[1:]) for each in given))


def _rows(meta: Any) -> Tensor:
    """One row of zeros."""
    sizes = meta["sizes"]
    row = tuple(each.get("as_int") for each in sizes[1:])
    plain = sizes and all(isinstance(size, int) and size > 0 for size in row) and math.prod(row) <= MAX_VALUES
    if not plain or meta["dtype"] not in DTYPES:
        raise ModelLoadError("expected a program of tensors of rows, (rows, n), of a fixed width")
    return torch.zeros(1, *row, dtype=DTYPES[meta["dtype"]])


def _register(module: nn.Module, name: str, tensor: Tensor, *, trained: bool) -> None:
    *path, last = name.split(".")
    if len(path) > _MAX_DEPTH:
        raise ModelLoadError(f"tensor {name[:60]!r} lies more than {_MAX_DEPTH} modules deep")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if trained:
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    else:
        module.register_buffer(last, tensor)


def _check_outputs(specs: Sequence[Any]) -> None:
    for spec in specs:
        match spec:
            case {"user_output": _}:
                continue
            case {"buffer_mutation": {"buffer_name": str(name)}}:
                raise ModelLoadError(writes_to(f"its buffer {name!r}"))
        raise ModelLoadError(writes_to("its input"))


def _structured(program: Any, made: Sequence[Any]) -> Any:
    """The outputs in the form in which the module answered them, which names them."""
    leaves = iter(made)

    def build(spec: Any) -> Any:
        if spec["type"] is None:
            return next(leaves)
        children = [build(each) for each in spec["children_spec"]]
        if spec["type"] in ("builtins.dict", "collections.OrderedDict"):
            return dict(zip(map(str, from_json(spec["context"])), children, strict=True))
        return tuple(children)

    entry = next(each for each in program["module_call_graph"] if each["fqn"] == "")
    _, spec = from_json(entry["signature"]["out_spec"])
    return build(spec)
