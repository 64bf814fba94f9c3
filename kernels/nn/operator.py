# SPDX-License-Identifier: Apache-2.0
"""The fused MLP as one operator of torch, `torch.ops.fused_mlp.mlp`: on the CPU and on CUDA it runs a compiled kernel,
everywhere else (other devices, float64) the reference. With a fake implementation and a backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fused_mlp.kernels.nn import reference
from fused_mlp.kernels.nn.packed import kernel_for, parse_spec
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES

NAME = "fused_mlp::mlp"

_TAGS = [torch.Tag.pt2_compliant_tag]
if hasattr(torch.Tag, "cudagraph_unsafe"):  # from torch 2.9 on
    # Which kernel runs depends on the weights' version counters, which a replayed CUDA graph would not ask:
    # torch.compile(mode="reduce-overhead") leaves the operator out of its graphs.
    _TAGS.append(torch.Tag.cudagraph_unsafe)

# A library of our own rather than torch.library.custom_op, which measured 10 us more per call.
_library: Any = torch.library.Library("fused_mlp", "DEF")  # type: ignore[no-untyped-call]
# No defaults: the dispatcher drops arguments that equal theirs, and the backward would have to guess which.
_library.define(
    "mlp(Tensor x, Tensor[] weights, str spec, str backend, int threads) -> Tensor",
    tags=_TAGS,
)
mlp = torch.ops.fused_mlp.mlp.default


def _run_kernel(x: Tensor, weights: Sequence[Tensor], spec: str, backend: str, threads: int) -> Tensor:
    """x: (rows, in_features), of the weights' dtype and device."""
    if x.dtype not in TORCH_DTYPES.values():
        return _run_reference(x, weights, spec, backend, threads)
    return kernel_for(weights, spec, backend, threads)(x)


def _run_reference(x: Tensor, weights: Sequence[Tensor], spec: str, backend: str, threads: int) -> Tensor:
    return reference.forward(x, weights, parse_spec(spec))


def _fake(x: Tensor, weights: Sequence[Tensor], spec: str, backend: str, threads: int) -> Tensor:
    return x.new_empty((x.shape[0], parse_spec(spec).out_features))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, ctx.spec, *_ = inputs
    ctx.save_for_backward(x, *weights)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, list[Tensor | None], None, None, None]:
    x, *weights = ctx.saved_tensors
    wants_x, wants, *_ = ctx.needs_input_grad
    of_x, of_weights = reference.backward(grad, x, weights, parse_spec(ctx.spec), [wants_x, *wants])
    return of_x, of_weights, None, None, None


_library.impl("mlp", _run_kernel, "CPU")
_library.impl("mlp", _run_kernel, "CUDA")
_library.impl("mlp", _run_reference, "CompositeExplicitAutograd")
torch.library.register_fake(NAME, _fake, lib=_library)
torch.library.register_autograd(NAME, _backward, setup_context=_remember, lib=_library)
