"""An MLP as torch modules: `Mlp.to_torch`, and the modules it is made of where torch has none."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fused_mlp.models.dtypes import Array
from fused_mlp.models.formula import Formula, parse
from fused_mlp.models.importers.torch_formulas import FUNCTIONS, apply
from fused_mlp.models.importers.torch_tensors import to_tensor
from fused_mlp.models.spec import (
    DEFAULT_SLOPE,
    INPUT,
    Affine,
    Elementwise,
    Gated,
    Linear,
    Norm,
    OutputActivation,
    Softmax,
    Step,
)
from fused_mlp.models.weights import Mlp

# By the first part of the formula: its parameters follow.
_MODULES: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
}
# By the whole text.
_NAMED: dict[str, Callable[[], nn.Module]] = {
    "x": nn.Identity,
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "hardsigmoid": nn.Hardsigmoid,
    "softsign": nn.Softsign,
    "softmax": lambda: nn.Softmax(dim=-1),
    "log_softmax": lambda: nn.LogSoftmax(dim=-1),
}


class Function(nn.Module):
    """A formula that torch has no module for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        return apply(parse(self.text), x)

    def extra_repr(self) -> str:
        return self.text


class GatedLinear(nn.Module):
    """activation(gate_proj(x)) * up_proj(x): the first half of a GeGLU, SwiGLU or ReGLU block."""

    def __init__(self, gate_proj: nn.Linear, up_proj: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.gate_proj = gate_proj
        self.up_proj = up_proj
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return gated


class ScaleShift(nn.Module):
    """x * weight + bias, one of each per feature, where it has them."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.register_parameter("weight", _parameter(weight))
        self.register_parameter("bias", _parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class RowNorm(ScaleShift):
    """The norms that torch has no module for: l2, and those with a bias alone."""

    def __init__(self, kind: str, eps: float, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.kind, self.eps = kind, eps

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(normalize(x, self.kind, self.eps))

    def extra_repr(self) -> str:
        return f"{self.kind}, eps={self.eps}"


class Squeeze(nn.Module):
    """(..., 1) -> (...), at the end of a chain."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def normalize(
    x: Tensor, kind: str, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """What a Norm step computes, over the last dimension."""
    if kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    if kind == "rms":
        x = functional.rms_norm(x, x.shape[-1:], weight, eps)
    else:
        x = functional.normalize(x, dim=-1, eps=eps)
        x = x if weight is None else x * weight
    return x if bias is None else x + bias


def activation_module(name: OutputActivation, negative_slope: float = DEFAULT_SLOPE) -> nn.Module:
    """A fresh module for an activation of a layer."""
    if name in ("softmax", "log_softmax"):
        return _NAMED[name]()
    return function_module(parse(f"leaky_relu(x, {negative_slope!r})" if name == "leaky_relu" else name))


def function_module(formula: Formula) -> nn.Module:
    """A fresh module for a function: torch's own where it has one."""
    if formula.text in _NAMED:
        return _NAMED[formula.text]()
    if formula.simple is not None:
        name, numbers = formula.simple
        if name == "clip" and numbers[0] < numbers[1]:
            return nn.Hardtanh(numbers[0], numbers[1])
        if name in _MODULES:
            return _MODULES[name](*numbers)
    return Function(formula.text)


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
            return _NAMED[step.op]()
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
        module.register_parameter("bias", _parameter(bias))
    else:
        module = nn.RMSNorm(width, step.eps, weight is not None, device="meta")
    module.register_parameter("weight", _parameter(weight))
    return module


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor, requires_grad=False)


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


_COMBINATIONS: dict[str, Callable[..., Any]] = {
    **{name: FUNCTIONS[name] for name in ("add", "subtract", "multiply", "divide")},
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


_MODULE_STEPS = (Linear, Gated, Elementwise, Norm, Affine, Softmax)


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
