# SPDX-License-Identifier: Apache-2.0
"""`Mlp.to_torch`: an MLP as a torch module, an nn.Sequential or a graph of the modules in modules.py."""

from __future__ import annotations

import keyword
import operator
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from fused_mlp.models.importers.torch.modules import (
    Buckets,
    GatedLinear,
    RaggedBag,
    RowNorm,
    ScaleShift,
    Squeeze,
    WholeNumbers,
    activation_module,
    function_module,
    parameter,
)
from fused_mlp.models.importers.torch.steps import plain_call
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES, to_tensor
from fused_mlp.models.program.spec import INPUT, Step
from fused_mlp.models.program.steps import (
    Affine,
    Bag,
    Bucketize,
    Concat,
    Elementwise,
    Embedding,
    Gated,
    Linear,
    Norm,
    Number,
    Slice,
    Softmax,
)
from fused_mlp.models.weights.dtypes import Array
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.tables import is_table

_MODULE_STEPS = (Linear, Gated, Elementwise, Norm, Affine, Softmax, Embedding, Bag, Bucketize)


def make_module(mlp: Mlp, *, joined: bool = False) -> nn.Module:
    """The result of `Mlp.to_torch`: an nn.Sequential for a chain of layers, a GraphModule (whose `code` is its forward)
    for other programs. Its forward takes the model's inputs by their names, those with a vocabulary as places in it.
    `joined`: as kernels are called, with the fields of a record (ids in int64), all outputs side by side."""
    chain = mlp.spec.layers is not None and mlp.spec.inputs is None
    return (_chain(mlp, joined) if chain else _program(mlp, joined)).eval()


def _chain(mlp: Mlp, joined: bool) -> nn.Module:
    modules: list[nn.Module] = []
    if len(mlp.spec.input_shape or ()) > 1:
        modules.append(nn.Flatten())
    modules += [_step_module(mlp, step) for step in mlp.spec.steps]
    if mlp.spec.outputs[0].squeeze and not joined:
        modules.append(Squeeze())
    return nn.Sequential(*modules)


def _table(mlp: Mlp, step: Step, copied: bool) -> Tensor:
    found = mlp.tensor(step, "weight")
    assert found is not None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        tensor = to_tensor(found)
    return tensor.clone() if copied or not is_table(found) else tensor


def _step_module(mlp: Mlp, step: Step, copied: bool = True) -> nn.Module:  # noqa: PLR0911 - a table of steps
    """The module of a step that a person would write as one. `copied`: also copies tables, which may be large."""

    def tensor(name: str) -> Tensor | None:
        found = mlp.tensor(step, name)
        return None if found is None else to_tensor(found).clone()

    match step:
        case Embedding():
            return nn.Embedding(step.size, step.features, _weight=_table(mlp, step, copied)).requires_grad_(
                False
            )
        case Bag():
            table = _table(mlp, step, copied)
            if any(part.input.ragged for part in mlp.spec.record):  # -1 stands for no id
                return RaggedBag(nn.Parameter(table, requires_grad=False), step.mode, step.padding)
            return nn.EmbeddingBag(
                step.size, step.features, mode=step.mode, padding_idx=step.padding, _weight=table
            ).requires_grad_(False)
        case Bucketize():
            boundaries = tensor("boundaries")
            assert boundaries is not None
            return Buckets(boundaries, step.right)
        case Linear():
            return _linear(mlp.tensor(step, "weight"), mlp.tensor(step, "bias"))
        case Gated():
            return GatedLinear(
                gate_proj=_linear(mlp.tensor(step, "gate_weight"), mlp.tensor(step, "gate_bias")),
                up_proj=_linear(mlp.tensor(step, "weight"), mlp.tensor(step, "bias")),
                activation=function_module(step.formula),
            )
        case Elementwise():
            return function_module(step.formula)
        case Softmax():
            return activation_module(step.op)
        case Affine():
            return ScaleShift(tensor("weight"), tensor("bias"))
        case Norm():
            return _norm(step, mlp.spec.widths_by_name[step.name], tensor("weight"), tensor("bias"))
    raise TypeError(f"{step.op} is no module")


def _linear(weight: Array | None, bias: Array | None) -> nn.Linear:
    assert weight is not None
    out_features, in_features = weight.shape
    # meta: skip the random initialisation that would be overwritten at once.
    linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(to_tensor(weight).clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(to_tensor(bias).clone(), requires_grad=False)
    return linear


def _norm(step: Norm, width: int, weight: Tensor | None, bias: Tensor | None) -> nn.Module:
    module: nn.Module
    if step.kind == "l2" or (bias is not None and (step.kind == "rms" or weight is None)):
        return RowNorm(step.kind, step.eps, weight, bias)
    if step.kind == "layer":
        module = nn.LayerNorm(width, step.eps, weight is not None, bias is not None, device="meta")
        module.register_parameter("bias", parameter(bias))
    else:
        module = nn.RMSNorm(width, step.eps, weight is not None, device="meta")
    module.register_parameter("weight", parameter(weight))
    return module


def _program(mlp: Mlp, joined: bool) -> fx.GraphModule:  # noqa: PLR0912 - a table of steps
    """Submodules have the names of their steps, so that the names of tensors in state_dict() are those of the Mlp
    (but for gated steps, which are two nn.Linear each)."""
    root = nn.Module()
    graph = fx.Graph()
    values: dict[str, Any] = {}
    if mlp.spec.inputs is None:
        values[INPUT] = graph.placeholder("x")
        if len(mlp.spec.input_shape or ()) > 1:
            values[INPUT] = graph.call_method("flatten", (values[INPUT], 1))
    else:
        record = _read_record(root, graph, mlp, joined)
        reads = {
            step.name: step for step in mlp.spec.steps if isinstance(step, Slice) and step.input == INPUT
        }
        values = {name: record(step.start, step.stop) for name, step in reads.items()}
        if any(INPUT in step.sources for step in mlp.spec.steps if step.name not in reads):
            values[INPUT] = record(0, mlp.spec.in_features)
    paths: dict[tuple[str, str], str] = {}
    # Steps with tensors first: where names collide, they keep theirs.
    for step in sorted(mlp.spec.steps, key=lambda each: not each.shapes(mlp.spec.source_widths(each))):
        if isinstance(step, _MODULE_STEPS) and _key(step) not in paths:
            paths[_key(step)] = _place(root, step.prefix, _step_module(mlp, step, copied=not joined))
    for step in mlp.spec.steps:
        if step.name in values:
            continue
        sources = [values[source] for source in step.sources]
        match step:
            case Bag() if len(sources) == 2:
                made = graph.call_module(paths[_key(step)], (sources[0], None, sources[1]))
            case Embedding():
                made = graph.call_method("flatten", (graph.call_module(paths[_key(step)], (sources[0],)), -2))
            case _ if isinstance(step, _MODULE_STEPS):
                made = graph.call_module(paths[_key(step)], tuple(sources))
            case Concat():
                made = graph.call_function(torch.cat, (sources, -1))
            case Slice():
                columns: Any = (Ellipsis, slice(step.start, step.stop))
                made = graph.call_function(operator.getitem, (sources[0], columns))
            case Number():
                made = graph.call_method("to", (sources[0], TORCH_DTYPES[mlp.spec.dtype]))
            case _:
                function, options = plain_call(step)
                made = graph.call_function(function, (*sources, *options))
        values[step.name] = made
    results = []
    for output in mlp.spec.outputs:
        result = values[output.value]
        squeezed = output.squeeze and not joined
        results.append(graph.call_method("squeeze", (result, -1)) if squeezed else result)
    if joined and len(results) > 1:
        results = [graph.call_function(torch.cat, (results, -1))]
    graph.output(tuple(results) if len(results) > 1 else results[0])
    return fx.GraphModule(root, graph, "Program")


def _read_record(root: nn.Module, graph: fx.Graph, mlp: Mlp, joined: bool) -> Callable[[int, int], Any]:
    """A function that returns some words of a record: the fields of the inputs, side by side."""
    given: dict[str, Any] = {}
    fields = []
    for part in mlp.spec.record:
        name = _identifier(part.input.name)
        if joined:
            fields.append((part, graph.placeholder(f"{name}_{part.start}")))
            continue
        if part.input.name not in given:
            taken = {node.name for node in graph.nodes}
            while name in taken:
                name += "_"
            given[part.input.name] = graph.placeholder(name)
    for part in mlp.spec.record if not joined else ():
        value = given[part.input.name]
        if not part.input.ragged:
            value = graph.call_method("reshape", (value, -1, part.input.width))
        if part.field.positions is not None:
            columns: Any = (Ellipsis, list(part.field.positions))
            value = graph.call_function(operator.getitem, (value, columns))
        if part.field.rules:
            name = f"{_identifier(part.input.name)}_rules"
            value = graph.call_module(_place(root, name, WholeNumbers(part.field.rules)), (value,))
        dtype = torch.int64 if part.field.kind == "id" else TORCH_DTYPES[mlp.spec.dtype]
        fields.append((part, graph.call_method("to", (value, dtype))))

    def read(start: int, stop: int) -> Any:
        found = []
        for part, value in fields:
            low, high = max(start, part.start), min(stop, part.stop)
            if low >= high:
                continue
            whole = (low, high) == (part.start, part.stop)
            columns: Any = (Ellipsis, slice(low - part.start, high - part.start))
            found.append(value if whole else graph.call_function(operator.getitem, (value, columns)))
        return found[0] if len(found) == 1 else graph.call_function(torch.cat, (found, -1))

    return read


def _key(step: Step) -> tuple[str, str]:
    """The same for steps that call one module."""
    if isinstance(step, Bag):
        return step.prefix, f"{step.op} {step.mode} {step.padding}"
    return step.prefix, step.function if isinstance(step, Gated) else ""


def _place(root: nn.Module, name: str, module: nn.Module) -> str:
    """Put it into nested modules by the parts of its name; the path where it is. Where a part is no possible attribute,
    or is taken by another module, the name is another one."""
    *parents, last = name.split(".")
    place, path = root, list[str]()
    for depth, part in enumerate(parents):
        inner = place._modules.get(part)
        if type(inner) is not nn.Module:
            if inner is not None or hasattr(place, part) or not _is_attribute(part):
                last = "_".join([*parents[depth:], last])
                break
            inner = nn.Module()
            place.add_module(part, inner)
        path.append(part)
        place = inner
    while hasattr(place, last) or not _is_attribute(last):
        last += "_"
    place.add_module(last, module)
    return ".".join([*path, last])


def _identifier(name: str) -> str:
    name = re.sub(r"\W", "_", name)
    return f"_{name}" if keyword.iskeyword(name) or name[0].isdigit() else name


def _is_attribute(name: str) -> bool:
    return name != "" and not keyword.iskeyword(name)
