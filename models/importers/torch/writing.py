# SPDX-License-Identifier: Apache-2.0
"""`Mlp.to_torch`: an MLP as a torch module, an nn.Sequential or a graph of the modules in modules.py."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from fused_mlp.models.dtypes import Array
from fused_mlp.models.importers.torch.formulas import FUNCTIONS
from fused_mlp.models.importers.torch.modules import (
    GatedLinear,
    RowNorm,
    ScaleShift,
    Squeeze,
    activation_module,
    function_module,
    parameter,
)
from fused_mlp.models.importers.torch.tensors import to_tensor
from fused_mlp.models.spec import INPUT, Affine, Elementwise, Gated, Linear, Norm, Softmax, Step
from fused_mlp.models.weights import Mlp

_MODULE_STEPS = (Linear, Gated, Elementwise, Norm, Affine, Softmax)
_COMBINATIONS: dict[str, Callable[..., Any]] = {
    **{name: FUNCTIONS[name] for name in ("add", "subtract", "multiply", "divide")},
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


def make_module(mlp: Mlp, *, joined: bool = False) -> nn.Module:
    """What `Mlp.to_torch` returns: an nn.Sequential for a chain of layers, a GraphModule (whose `code` is its forward)
    for other programs. `joined`: all outputs side by side, (..., out_features), as kernels write them."""
    module = _program(mlp, joined) if mlp.spec.layers is None else _chain(mlp, joined)
    return module.eval()


def _chain(mlp: Mlp, joined: bool) -> nn.Module:
    modules: list[nn.Module] = []
    if len(mlp.spec.input_shape or ()) > 1:
        modules.append(nn.Flatten())
    modules += [_step_module(mlp, step) for step in mlp.spec.steps]
    if mlp.spec.outputs[0].squeeze and not joined:
        modules.append(Squeeze())
    return nn.Sequential(*modules)


def _step_module(mlp: Mlp, step: Step) -> nn.Module:
    """Of the steps that a person writes as modules."""

    def tensor(name: str) -> Tensor | None:
        found = mlp.tensor(step, name)
        return None if found is None else to_tensor(found).clone()

    match step:
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


def _program(mlp: Mlp, joined: bool) -> fx.GraphModule:
    """Submodules have the names of their steps, so that the names of tensors in state_dict() are those of the Mlp
    (but for gated steps, which are two nn.Linear each)."""
    root = nn.Module()
    graph = fx.Graph()
    values: dict[str, Any] = {INPUT: graph.placeholder("x")}
    if len(mlp.spec.input_shape or ()) > 1:
        values[INPUT] = graph.call_method("flatten", (values[INPUT], 1))
    paths: dict[tuple[str, str], str] = {}
    # Those with tensors first: where names collide, they keep theirs.
    for step in sorted(mlp.spec.steps, key=lambda each: not each.shapes(mlp.spec.source_widths(each))):
        if isinstance(step, _MODULE_STEPS) and _key(step) not in paths:
            paths[_key(step)] = _place(root, step.prefix, _step_module(mlp, step))
    for step in mlp.spec.steps:
        sources = [values[source] for source in step.sources]
        if step.op == "concat":
            values[step.name] = graph.call_function(torch.cat, (sources, -1))
        elif step.op == "slice":
            columns: Any = (Ellipsis, slice(step.start, step.stop))
            values[step.name] = graph.call_function(operator.getitem, (sources[0], columns))
        elif len(sources) == 2:
            values[step.name] = graph.call_function(_COMBINATIONS[step.op], tuple(sources))
        else:
            values[step.name] = graph.call_module(paths[_key(step)], tuple(sources))
    results = []
    for output in mlp.spec.outputs:
        result = values[output.value]
        squeezed = output.squeeze and not joined
        results.append(graph.call_method("squeeze", (result, -1)) if squeezed else result)
    if joined and len(results) > 1:
        results = [graph.call_function(torch.cat, (results, -1))]
    graph.output(tuple(results) if len(results) > 1 else results[0])
    return fx.GraphModule(root, graph, "Program")


def _key(step: Step) -> tuple[str, str]:
    """The same for steps that call one module."""
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


def _is_attribute(name: str) -> bool:
    return name != "" and not keyword.iskeyword(name)
