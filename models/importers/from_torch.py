"""`fused_mlp.from_torch`: an MLP from the torch module that a user has in memory. What is not part of an MLP is
refused by name and place; nothing is guessed from a `forward` that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fused_mlp.models.dtypes import Array
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.activation_match import POINTS, match_activation
from fused_mlp.models.importers.assembly import Assembler
from fused_mlp.models.importers.torch_modules import GatedLinear
from fused_mlp.models.importers.torch_tensors import to_array
from fused_mlp.models.spec import DEFAULT_SLOPE, Activation, Dtype, OutputActivation
from fused_mlp.models.weights import Mlp

# Attributes under which gated blocks keep their activation; transformers says act_fn.
_ACTIVATION_ATTRIBUTES = ("act_fn", "act", "activation", "activation_fn")
_SKIPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_GATED_BLOCK = ("gate_proj", "up_proj", "down_proj")
# Rows tried on a block whose forward is the user's code, and how far it may be off: both compute the
# same sums in another order, so that a few hundred roundings cover it and another formula does not.
_PROBE_ROWS = 4
_PROBE_ROUNDINGS = 512


@np.errstate(all="ignore")  # Mlp refuses what is not finite, by name
def from_torch(module: nn.Module, *, dtype: Dtype | None = None) -> Mlp:
    """The MLP that `module` computes in eval mode, with copies of its weights.

    Understands Linear, the activations of the spec, Identity and Dropout (skipped), BatchNorm1d (folded),
    Flatten, Sequentials of these in any nesting, and gated blocks with gate_proj, up_proj and down_proj.
    `dtype` rounds the weights; without it they keep theirs, and float64, which is not served, is refused."""
    assembler = Assembler()
    for path, part in _walk(module):
        where = f"layer {path}: {type(part).__name__}" if path else type(part).__name__
        _add(assembler, where, part)
    return assembler.finish(dtype)


def parameter_names(module: nn.Module) -> dict[str, str]:
    """Which entry of `module.state_dict()` each tensor of the MLP is: `layers.0.weight` is `0.weight`, say.
    What folds or computes its weights has no such entry, and is refused by name."""
    names: dict[str, str] = {}
    index = 0
    for path, part in _walk(module):
        prefix = f"{path}." if path else ""
        linears: list[dict[str, str]] = []
        if isinstance(part, nn.Linear):
            linears = [{"": ""}]
        elif isinstance(getattr(part, "gate_proj", None), nn.Linear):
            linears = [{"": "up_proj.", "gate_": "gate_proj."}]
            linears += [{"": "down_proj."}] if hasattr(part, "down_proj") else []
        for halves in linears:
            for half, child in halves.items():
                for kind in ("weight", "bias"):
                    names[f"layers.{index}.{half}{kind}"] = f"{prefix}{child}{kind}"
            index += 1
    entries = module.state_dict()
    names = {ours: theirs for ours, theirs in names.items() if theirs in entries}
    for entry in entries:
        if entry not in names.values():
            raise ModelLoadError(
                f"{entry!r} is no weight or bias of a linear layer: fold it first, with "
                "fused_mlp.from_torch(module).to_torch()"
            )
    return names


def _walk(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The leaves in forward order. Not named_children(), which drops a module that is used twice."""
    if _runs_as(module, nn.Sequential) and isinstance(module, nn.Sequential):
        _check_readable(f"layer {path}" if path else "the module", module)
        for name, child in module._modules.items():
            if child is not None:
                yield from _walk(child, f"{path}.{name}" if path else name)
    else:
        yield path, module


def _add(assembler: Assembler, where: str, module: nn.Module) -> None:
    _check_readable(where, module)
    if any(_runs_as(module, kind) for kind in _SKIPPED):
        return
    if isinstance(module, nn.Linear) and _runs_as(module, nn.Linear):
        assembler.linear(where, *_parameters(where, module))
    elif isinstance(module, nn.BatchNorm1d) and _runs_as(module, nn.BatchNorm1d):
        assembler.affine(where, *_batch_norm(where, module))
    elif isinstance(module, nn.Flatten) and _runs_as(module, nn.Flatten):
        if (module.start_dim, module.end_dim) != (1, -1):
            raise ModelLoadError(f"{where}({module.start_dim}, {module.end_dim}): expected Flatten(1, -1)")
    elif isinstance(module, GatedLinear):
        gate, up = _parameters(where, module.gate_proj), _parameters(where, module.up_proj)
        assembler.gated(where, gate, up, *_gate_activation(where, module.activation))
    elif all(
        isinstance(getattr(module, name, None), nn.Linear) for name in ("gate_proj", "up_proj", "down_proj")
    ):
        _add_gated_block(assembler, where, module)
    else:
        assembler.activation(where, *_activation(where, module))


def _runs_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it computes what `kind` does: a subclass may add what it likes as long as forward is inherited.
    Parametrizations (weight_norm, spectral_norm) do just that; `weight` then gives the effective value."""
    return type(module).forward is kind.forward and "forward" not in vars(module)


def _check_readable(where: str, module: nn.Module) -> None:
    if any(is_lazy(tensor) for tensor in (*module.parameters(False), *module.buffers(False))):
        raise ModelLoadError(f"{where} has no weights yet: run the module once first")
    if module._forward_hooks or module._forward_pre_hooks:
        raise ModelLoadError(f"{where} has forward hooks, whose effect cannot be read: remove them first")


def _parameters(where: str, linear: nn.Linear) -> tuple[Array, Array | None]:
    bias = None if linear.bias is None else to_array(linear.bias, f"{where}.bias")
    return to_array(linear.weight, f"{where}.weight"), bias


def _batch_norm(where: str, norm: nn.BatchNorm1d) -> tuple[Array, Array]:
    """(scale, shift) of its eval-mode effect, in float64."""
    if norm.running_mean is None or norm.running_var is None:
        raise ModelLoadError(f"{where} keeps no running statistics: its output depends on the batch")
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.affine:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        shift = shift + norm.bias.double()
    return to_array(scale, where), to_array(shift, where)


# By class: the activation, or None where the module's settings make it another function.
_ACTIVATIONS: dict[type[nn.Module], Callable[[Any], OutputActivation | None]] = {
    nn.ReLU: lambda _: "relu",
    nn.LeakyReLU: lambda _: "leaky_relu",
    nn.PReLU: lambda m: "leaky_relu" if m.num_parameters == 1 else None,
    nn.GELU: lambda m: "gelu_tanh" if m.approximate == "tanh" else "gelu",
    nn.SiLU: lambda _: "silu",
    nn.Tanh: lambda _: "tanh",
    nn.Sigmoid: lambda _: "sigmoid",
    nn.ELU: lambda m: "elu" if m.alpha == 1 else None,
    nn.Softplus: lambda m: "softplus" if (m.beta, m.threshold) == (1, 20) else None,
    nn.Hardswish: lambda _: "hardswish",
    nn.Hardtanh: lambda m: "relu6" if (m.min_val, m.max_val) == (0, 6) else None,  # ReLU6 is one of these
    nn.Mish: lambda _: "mish",
    nn.Softmax: lambda m: "softmax" if m.dim in (-1, 1) else None,
    nn.LogSoftmax: lambda m: "log_softmax" if m.dim in (-1, 1) else None,
}


def _activation(where: str, module: nn.Module) -> tuple[OutputActivation, float]:
    """Exact: by class and by the settings that change the function."""
    for kind, read in _ACTIVATIONS.items():
        if _runs_as(module, kind):
            name = read(module)
            if name is None:
                raise ModelLoadError(
                    f"{where}({module.extra_repr()}) is not part of an MLP: only its default settings are"
                )
            return name, _slope(module)
    if type(module).__module__.startswith("torch."):
        raise ModelLoadError(f"{where} is not part of an MLP")
    raise ModelLoadError(
        f"{where} is not part of an MLP: its forward is code of its own; pass the nn.Sequential inside it, "
        "or export it to ONNX and import that"
    )


def _slope(module: nn.Module) -> float:
    if isinstance(module, nn.LeakyReLU):
        return float(module.negative_slope)
    if isinstance(module, nn.PReLU):
        return float(module.weight.detach())
    return DEFAULT_SLOPE


def _gate_activation(where: str, function: object) -> tuple[Activation, float]:
    """By class where it is torch's, else by its values: transformers has activation classes of its own, and
    a plain function such as F.silu is common."""
    if isinstance(function, nn.Identity):
        return "identity", DEFAULT_SLOPE
    if isinstance(function, nn.Module) and type(function).__module__.startswith("torch."):
        name, slope = _activation(f"{where}: {type(function).__name__}", function)
        if name in ("softmax", "log_softmax"):
            raise ModelLoadError(f"{where}: {name} cannot be the activation of a gate")
        return name, slope  # type: ignore[return-value]  # mypy does not narrow a Literal by `in`
    found = None
    if callable(function):
        with torch.inference_mode():
            found = match_activation(to_array(function(torch.from_numpy(POINTS.copy())), where))
    if found is None:
        raise ModelLoadError(f"{where}: its activation {function!r} is none of the activations of an MLP")
    return found


def _add_gated_block(assembler: Assembler, where: str, block: nn.Module) -> None:
    """down_proj(act(gate_proj(x)) * up_proj(x)), checked against what the block really computes."""
    names = [name for name in _ACTIVATION_ATTRIBUTES if callable(getattr(block, name, None))]
    if not names:
        raise ModelLoadError(
            f"{where} has no activation: expected one of {', '.join(_ACTIVATION_ATTRIBUTES)}"
        )
    activation, slope = _gate_activation(where, getattr(block, names[0]))
    gate, up, down = (_parameters(f"{where}.{name}", getattr(block, name)) for name in _GATED_BLOCK)
    alone = Assembler()
    for each in (alone, assembler):
        each.gated(where, gate, up, activation, slope)
        each.linear(f"{where}.down_proj", *down)
    _check_forward(where, block, gate[0].shape[1], alone)


def _check_forward(where: str, block: nn.Module, in_features: int, assembler: Assembler) -> None:
    weight = next(block.parameters())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_PROBE_ROWS, in_features, generator=generator)
    modes = {part: part.training for part in block.modules()}
    try:
        with torch.inference_mode():
            got = block.eval()(x.to(weight.device, weight.dtype)).cpu().double()
    except Exception as error:
        raise ModelLoadError(f"{where} could not be run on (rows, {in_features}) inputs: {error}") from error
    finally:
        for part, training in modes.items():
            part.training = training
    with torch.inference_mode():
        expected = assembler.finish("float32").to_torch().double()(x.to(weight.dtype).double())
    allowed = _PROBE_ROUNDINGS * torch.finfo(weight.dtype).eps * float(expected.abs().max())
    if got.shape != expected.shape or not float((got - expected).abs().max()) <= allowed:
        raise ModelLoadError(
            f"{where} has gate_proj, up_proj and down_proj, but does not compute "
            "down_proj(activation(gate_proj(x)) * up_proj(x))"
        )
