# SPDX-License-Identifier: Apache-2.0
"""A module prepared for reading: a copy of it in eval mode, on the CPU and in float64, so that neither what is read nor
what the check compares it with is rounded. The user's module stays as it is. Owns what is refused unseen."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.torch.aten.refusals import quantised


@dataclass(frozen=True)
class Prepared:
    module: nn.Module  # float64, on the CPU, in eval mode
    dtypes: dict[str, str]  # of the user's own tensors, by name
    quantized: frozenset[str]  # weights that were int8, by name


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def prepare(module: nn.Module, dtype: torch.dtype = torch.float64) -> Prepared:
    _check(module)
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in _tensors(module)}
    memo: dict[int, Any] = {}
    quantized = set()
    for path, part in module.named_modules():
        if _is_dynamic_linear(part):
            weight = part.weight()
            if weight.is_quantized:  # else they are float16
                quantized.add(f"{path}.weight" if path else "weight")
            memo[id(part)] = _in_float32(weight, part.bias())
        for attribute in vars(part).values():
            # Tensors that are no parameters: deepcopy refuses computed ones, and .double() does not know any of them.
            if isinstance(attribute, Tensor) and not isinstance(attribute, nn.Parameter):
                memo[id(attribute)] = _converted(attribute, dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied = copy.deepcopy(module, memo)
    except Exception as error:
        raise ModelLoadError(f"{type(module).__name__} cannot be copied: {first_line(error)}") from error
    for name, ours in copied.named_modules():
        if isinstance(ours, nn.RMSNorm) and ours.eps is None:  # torch takes that of the dtype, which changes
            parameter = next(module.get_submodule(name).parameters(), None)
            ours.eps = torch.finfo(torch.float32 if parameter is None else parameter.dtype).eps
    return Prepared(copied.cpu().to(dtype).eval().requires_grad_(False), dtypes, frozenset(quantized))


def _is_dynamic_linear(part: nn.Module) -> bool:
    """A layer of torch.ao.quantization.quantize_dynamic: int8 weights and rows quantised as they come, or float16."""
    return type(part).__module__.endswith("quantized.dynamic.modules.linear") and hasattr(
        part, "_packed_params"
    )


def _in_float32(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """The same weights for rows that are not quantised: `reduce_precision` brings both back."""
    weight = weight.dequantize().float()
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    plain = tensor.detach().cpu().clone()
    return plain.to(dtype) if plain.is_floating_point() else plain


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _check(module: nn.Module) -> None:
    for path, part in module.named_modules():
        where = f"layer {path}: {type(part).__name__}" if path else type(part).__name__
        if any(is_lazy(tensor) for tensor in (*part.parameters(False), *part.buffers(False))):
            raise ModelLoadError(f"{where} has no weights yet: run the module once first")
        inside = _is_dynamic_linear(part) or type(part).__name__ == "LinearPackedParams"
        if "quantized" in type(part).__module__.split(".") and not inside:
            raise ModelLoadError(
                f"{where} is quantised, which is not read: import the float model it was made from"
            )
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if str(node.target).startswith("quantized_decomposed."):
                    raise ModelLoadError(f"{where}: {quantised(str(node.target))}")
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelLoadError(
                f"{where} is TorchScript: save it and import the file, or pass the module it was made from"
            )
    for name, tensor in _tensors(module):
        if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
            raise ModelLoadError(f"tensor {name!r} is not a plain dense tensor with data")
