"""Operators and launches of a forward pass, counted in a trace. What an operator is comes from torch's own registry:
a view returns an alias of its input, a wrapper is composed of other operators, the rest does work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import torch

from fused_mlp.kernels.profile.results import Counts
from fused_mlp.kernels.profile.trace_events import Event, Node, forward_passes, instants

Kind = Literal["work", "wrapper", "view", "allocation", "annotation"]

_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_")
_GENERATED = re.compile("cpp_fused|triton_")  # what torch.compile wrote
# Inputs that hold another one again, packed by somebody else's rules.
_PACKED_INPUTS = {"mkl::_mkl_linear": (1,)}
_BYTES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4, "bool": 1}


@cache
def kind_of(name: str) -> Kind:
    if "::" not in name:
        return "work" if _GENERATED.search(name) else "annotation"
    return "allocation" if name.startswith(_ALLOCATIONS) else _kind_by_schema(name)


def _kind_by_schema(name: str) -> Kind:
    schemas: list[Any] = torch._C._jit_get_schemas_for_operator(name)
    # Some operators come as several schemas (resize to a given result, say); the plain one says what it is.
    for schema in schemas:
        for returned in schema.returns:
            if returned.alias_info is not None and not returned.alias_info.is_write:
                return "view"
    if schemas and torch._C._dispatch_has_kernel_for_dispatch_key(
        _full_name(schemas[0]), "CompositeImplicitAutograd"
    ):
        return "wrapper"
    return "work"


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def count(trace: Event) -> Counts:
    """Means over the forward passes of a trace, which are alike."""
    passes = forward_passes(trace)
    operators: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    bookkeeping = allocated = moved = 0
    known = True
    for root in passes:
        for node in root.walk():
            kind = kind_of(node.name) if node.category == "cpu_op" else "annotation"
            if kind != "annotation":
                operators[node.name] += 1
                bookkeeping += kind != "work"
        for event in instants(trace, "[memory]", root.start, root.end):
            allocated += max(0, int(event["args"]["Bytes"]))
        for launch in _launches(root):
            launches[launch.name] += 1
            size = _bytes_moved(trace, launch)
            moved += size or 0
            known = known and size is not None
    kernels = _device_kernels(trace)
    n = max(1, len(passes))
    if kernels:
        launches = Counter(event["name"] for event in kernels)
    return Counts(
        operators={name: round(number / n) for name, number in sorted(operators.items())},
        bookkeeping=round(bookkeeping / n),
        launches={name: round(number / n) for name, number in sorted(launches.items())},
        device_us=sum(float(event["dur"]) for event in kernels) / n if kernels else None,
        bytes_allocated=allocated // n,
        bytes_moved=moved // n,
        bytes_moved_known=known,
    )


def _launches(node: Node) -> Iterator[Node]:
    """The outermost operators that compute: what one calls on the way counts as its own."""
    for child in node.children:
        if child.category == "cpu_op" and kind_of(child.name) == "work":
            yield child
        else:
            yield from _launches(child)


def _device_kernels(trace: Event) -> list[Event]:
    return [
        event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") == "kernel"
    ]


def _bytes_moved(trace: Event, launch: Node) -> int | None:
    """Its inputs, and what was allocated for its result. None where it did not say."""
    shapes, types = launch.args.get("Input Dims"), launch.args.get("Input type")
    if not shapes:
        return None
    size = 0
    for index, (shape, kind) in enumerate(zip(shapes, types or [], strict=False)):
        if index in _PACKED_INPUTS.get(launch.name, ()):
            continue
        nested = shape if shape and isinstance(shape[0], list) else [shape]
        each = 4 if kind == "TensorList" else _BYTES.get(kind, 0)
        for dims in nested:
            size += each * _product(dims) if dims else 0
    outputs = instants(trace, "[memory]", launch.start, launch.end)
    return size + sum(max(0, int(event["args"]["Bytes"])) for event in outputs)


def _product(dims: list[int]) -> int:
    product = 1
    for dim in dims:
        product *= int(dim)
    return product
