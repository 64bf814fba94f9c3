"""The table of ATen operators: what each is in a program. One function per operator, with the operator's own
arguments; values that depend on the rows come as Rows, all others as tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fused_mlp.models import formula
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder, Operand
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import (
    Rows,
    expanded,
    inserted,
    permuted,
    removed,
    reshaped,
    taken,
)
from fused_mlp.models.importers.torch_einsum import einsum
from fused_mlp.models.spec import Combination

_MIXES = "it mixes rows with features: the answer for a row must not depend on the rows beside it"


@dataclass(frozen=True)
class Call:
    """One node of the graph: the builder, how to make constants of tensors, and what torch knows of the result."""

    builder: Builder
    constant: Callable[[Tensor], Constant]
    made: Any

    def operand(self, value: Any) -> Operand:
        if isinstance(value, Tensor):
            return self.constant(value)
        return value if isinstance(value, Rows) else float(one_row(value))

    def tensor(self, value: Any) -> Constant:
        if not isinstance(value, Tensor):
            raise ModelLoadError("expected weights that do not depend on the rows")
        return self.constant(value)

    def optional(self, value: Any) -> Constant | None:
        return None if value is None else self.tensor(value)

    def shape(self, made: Any = None) -> tuple[list[int], int]:
        """Of the result, for one row, and which axis is that of the rows."""
        sizes = list((self.made if made is None else made).shape)
        at = [axis for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
        if len(at) != 1:
            raise ModelLoadError(_MIXES)
        return [one_row(size) for size in sizes], at[0]

    def view(self, x: Rows) -> Rows:
        return reshaped(x, *self.shape())


def one_row(value: Any) -> Any:
    """A size that depends on the number of rows, for one row; everything else as it is."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        symbols = list(expression.free_symbols)
        if len(symbols) != 1 or expression.subs(symbols[0], 0) != 0:
            raise ModelLoadError(_MIXES)
        single = expression.subs(symbols[0], 1)
        if not single.is_integer or expression.subs(symbols[0], 2) != 2 * single:
            raise ModelLoadError(_MIXES)
        return int(single)
    return value


Reader = Callable[..., Any]
OPERATORS: dict[str, Reader] = {}


def _reads(*names: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        for name in names:
            OPERATORS[name] = reader
        return reader

    return register


# Refused with a word on why; every other operator that is in neither table is refused as unknown.
_BATCH = "its result depends on the rows of the batch, not on one row alone"
_CONVOLUTION = "a convolution is no step of an MLP: this server runs MLPs alone"
_ATTENTION = (
    "attention is no step of an MLP: import the feed-forward block alone, such as model.layers[0].mlp"
)
_IDS = "it looks up rows of a table by category ids, which are not served yet: pass floats"
_DROPS = "write F.dropout(x, p, self.training), or keep the module where eval() finds it"
_RANDOM = "it draws random numbers: every row has one answer"
REFUSED = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d"), _CONVOLUTION),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d"), _CONVOLUTION),
    **dict.fromkeys(("scaled_dot_product_attention", "_native_multi_head_attention"), _ATTENTION),
    **dict.fromkeys(("embedding", "embedding_bag", "one_hot", "gather", "bucketize", "searchsorted"), _IDS),
    **dict.fromkeys(("rand_like", "randn_like", "bernoulli", "normal", "multinomial", "randint_like"), _RANDOM),
    **dict.fromkeys(("argmax", "argmin", "topk", "sort", "argsort"), "it answers positions, or an order, not a function of features: answer the scores"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "a recurrent layer is no step of an MLP"),
    **dict.fromkeys(("quantize_per_tensor", "dequantize", "quantized::linear_dynamic", "quantized::linear"), "quantised layers are not read: import the float model"),
    **dict.fromkeys(("round", "floor", "ceil", "trunc", "frac", "fmod", "remainder"), "a function with steps is no part of a formula"),
    "instance_norm": _BATCH,
}  # fmt: skip


# Products


@_reads("linear")
def _linear(call: Call, x: Any, weight: Any, bias: Any = None) -> Rows:
    if not isinstance(x, Rows) or isinstance(weight, Rows):
        return _matmul(call, x, weight)
    if weight.dim() == 1:
        return call.builder.matmul(x, call.tensor(weight))
    if isinstance(bias, Rows):
        return call.builder.arithmetic("add", call.builder.linear(x, call.tensor(weight)), bias)
    return call.builder.linear(x, call.tensor(weight), call.optional(bias))


@_reads("matmul", "mm", "bmm", "mv", "dot", "linalg_matmul", "inner", "__matmul__")
def _matmul(call: Call, left: Any, right: Any) -> Rows:
    return call.builder.matmul(_matrix(call, left), _matrix(call, right))


def _matrix(call: Call, value: Any) -> Rows | Constant:
    return call.constant(value) if isinstance(value, Tensor) else value


@_reads("addmm", "baddbmm", "addmv")
def _addmm(call: Call, bias: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1) -> Rows:
    product = _matmul(call, left, right)
    if alpha != 1:
        product = call.builder.arithmetic("multiply", product, float(alpha))
    if beta == 0:
        return product
    if beta != 1:
        bias = (
            call.builder.arithmetic("multiply", bias, float(beta)) if isinstance(bias, Rows) else bias * beta
        )
    return call.builder.arithmetic("add", product, call.operand(bias))


@_reads("einsum")
def _einsum(call: Call, equation: str, operands: Sequence[Any], path: Any = None) -> Rows:
    return einsum(call.builder, equation, [_matrix(call, each) for each in operands])


# Arithmetic


def _arithmetic(op: Combination) -> Reader:
    def read(call: Call, left: Any, right: Any, *, alpha: float = 1) -> Rows:
        other = call.operand(right)
        if alpha != 1:
            other = (
                call.builder.arithmetic("multiply", other, float(alpha))
                if isinstance(other, Rows)
                else Constant(np.asarray(other.exact if isinstance(other, Constant) else other) * alpha)
            )
        return call.builder.arithmetic(op, call.operand(left), other)

    return read


for _op, _names in {
    "add": ("add",),
    "subtract": ("sub", "subtract"),
    "multiply": ("mul", "multiply"),
    "maximum": ("maximum", "fmax"),
    "minimum": ("minimum", "fmin"),
}.items():
    for _name in _names:
        OPERATORS[_name] = _arithmetic(_op)  # type: ignore[arg-type]


@_reads("div", "divide", "true_divide")
def _divide(call: Call, left: Any, right: Any, *, rounding_mode: str | None = None) -> Rows:
    if rounding_mode is not None:
        raise ModelLoadError("a function with steps is no part of a formula")
    return call.builder.arithmetic("divide", call.operand(left), call.operand(right))


@_reads("rsub")
def _rsub(call: Call, left: Any, right: Any, alpha: float = 1) -> Rows:
    return _arithmetic("subtract")(call, right, left, alpha=alpha)


@_reads("addcmul")
def _addcmul(call: Call, x: Any, left: Any, right: Any, *, value: float = 1) -> Rows:
    return _added(call, "multiply", (x, left, right), value)


@_reads("addcdiv")
def _addcdiv(call: Call, x: Any, left: Any, right: Any, *, value: float = 1) -> Rows:
    return _added(call, "divide", (x, left, right), value)


def _added(
    call: Call, op: Literal["multiply", "divide"], operands: tuple[Any, Any, Any], value: float
) -> Rows:
    x, left, right = operands
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        made: Any = left * right if op == "multiply" else left / right
        return _arithmetic("add")(call, x, made, alpha=value)
    product = call.builder.arithmetic(op, call.operand(left), call.operand(right))
    return _arithmetic("add")(call, x, product, alpha=value)


@_reads("lerp")
def _lerp(call: Call, start: Any, end: Any, weight: Any) -> Rows:
    build = call.builder.arithmetic
    if isinstance(start, Tensor) and isinstance(end, Tensor):
        return build(
            "add", call.operand(start), build("multiply", call.operand(weight), call.operand(end - start))
        )
    return build(
        "add",
        call.operand(start),
        build("multiply", build("subtract", call.operand(end), call.operand(start)), call.operand(weight)),
    )


@_reads("pow", "float_power")
def _pow(call: Call, x: Any, exponent: Any) -> Rows:
    value = call.operand(exponent)
    if not isinstance(x, Rows):  # a ** x = exp(x log a)
        base = call.operand(x)
        if isinstance(value, Rows) and isinstance(base, float) and base > 0:
            return call.builder.function("exp", call.builder.arithmetic("multiply", value, math.log(base)))
        raise ModelLoadError("a power of this kind is no step of an MLP")
    if isinstance(value, Constant) and value.array.size == 1:
        value = float(value.exact.reshape(()))
    if not isinstance(value, float):
        raise ModelLoadError("expected one exponent for all features")
    return call.builder.power(x, value)


# Functions of one value


def _formula(text: str) -> Reader:
    tree = formula.parse(text).root
    return lambda call, x: call.builder.apply(x, tree)


for _name, _text in {
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "selu": "selu",
    "relu6": "relu6",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "mish": "mish",
    "exp": "exp",
    "exp2": "exp(0.6931471805599453 * x)",
    "expm1": "exp(x) - 1",
    "log": "log",
    "log2": "log(x) / 0.6931471805599453",
    "log10": "log(x) / 2.302585092994046",
    "log1p": "log(1 + x)",
    "sign": "sign",
    "sgn": "sign",
    "sqrt": "sqrt",
    "rsqrt": "1 / sqrt(x)",
    "sin": "sin",
    "cos": "cos",
    "tan": "sin(x) / cos(x)",
    "sinh": "0.5 * (exp(x) - exp(-1 * x))",
    "cosh": "0.5 * (exp(x) + exp(-1 * x))",
    "asinh": "log(x + sqrt(x * x + 1))",
    "abs": "abs",
    "erf": "erf",
    "erfc": "1 - erf(x)",
    "square": "square",
    "reciprocal": "reciprocal",
    "neg": "-x",
    "log_sigmoid": "-softplus(-x)",
}.items():
    OPERATORS[_name] = _formula(_text)


@_reads("gelu")
def _gelu(call: Call, x: Rows, *, approximate: str = "none") -> Rows:
    return call.builder.function("gelu_tanh" if approximate == "tanh" else "gelu", x)


@_reads("elu")
def _elu(call: Call, x: Rows, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Rows:
    if input_scale != 1:
        raise ModelLoadError(f"expected input_scale 1, got {input_scale}")
    made = call.builder.function("elu", x, alpha)
    return made if scale == 1 else call.builder.arithmetic("multiply", made, float(scale))


@_reads("leaky_relu")
def _leaky_relu(call: Call, x: Rows, slope: float = 0.01) -> Rows:
    return call.builder.function("leaky_relu", x, slope)


@_reads("celu")
def _celu(call: Call, x: Rows, alpha: float = 1) -> Rows:
    return call.builder.function("celu", x, alpha)


@_reads("rrelu")
def _rrelu(call: Call, x: Rows, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any) -> Rows:  # noqa: PLR0917 - ATen's arguments
    if training:
        raise ModelLoadError(f"it draws random slopes in eval mode too: {_DROPS}")
    return call.builder.function("leaky_relu", x, (lower + upper) / 2)


@_reads("softplus")
def _softplus(call: Call, x: Rows, beta: float = 1, threshold: float = 20) -> Rows:
    return call.builder.function("softplus", x, beta, threshold)


@_reads("softshrink")
def _softshrink(call: Call, x: Rows, size: float = 0.5) -> Rows:
    clipped = formula.call("clip", formula.x(), -size, size)
    return call.builder.apply(x, formula.binary("subtract", formula.x(), clipped))


@_reads("hardtanh", "clamp", "clip")
def _clamp(
    call: Call, x: Rows, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> Rows:  # noqa: A002 - torch's names
    low, high = min if low is None else low, max if high is None else high
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return call.builder.function("clip", x, low, high)
    if low is not None:
        x = call.builder.arithmetic("maximum", x, call.operand(low))
    return x if high is None else call.builder.arithmetic("minimum", x, call.operand(high))


@_reads("clamp_min")
def _clamp_min(call: Call, x: Rows, low: Any) -> Rows:
    return _clamp(call, x, low)


@_reads("clamp_max")
def _clamp_max(call: Call, x: Rows, high: Any) -> Rows:
    return _clamp(call, x, None, high)


@_reads("prelu", "_prelu_kernel")
def _prelu(call: Call, x: Rows, slope: Any) -> Rows:
    return call.builder.prelu(x, call.operand(slope), 1 if x.index.ndim > 1 else 0)


@_reads("glu")
def _glu(call: Call, x: Rows, dim: int = -1) -> Rows:
    half = x.shape[x.axis(dim)] // 2
    gate = call.builder.function("sigmoid", taken(x, dim, slice(half, None)))
    return call.builder.arithmetic("multiply", taken(x, dim, slice(0, half)), gate)


@_reads("threshold")
def _threshold(call: Call, x: Rows, threshold: float, value: float) -> Rows:
    return call.builder.where(call.builder.compare("greater", x, float(threshold)), x, float(value))


# Conditions


def _comparison(name: str) -> Reader:
    return lambda call, left, right: call.builder.compare(name, call.operand(left), call.operand(right))


for _name, _text in {
    "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    OPERATORS[_name] = _comparison(_text)


@_reads("where")
def _where(call: Call, condition: Any, left: Any, right: Any) -> Rows:
    return call.builder.where(call.operand(condition), call.operand(left), call.operand(right))


@_reads("masked_fill")
def _masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Rows:
    return call.builder.where(call.operand(mask), call.operand(value), call.operand(x))


# The same values in another form


@_reads(
    "detach", "detach_copy", "clone", "contiguous", "alias", "alias_copy", "lift_fresh_copy", "lift_fresh", "type_as",
    "positive", "resolve_conj", "resolve_neg",
)  # fmt: skip
def _same(call: Call, x: Rows, *_: Any, **__: Any) -> Rows:
    return x


@_reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Call, x: Rows, share: float, train: bool) -> Rows:
    if train and share > 0:
        raise ModelLoadError(f"it drops values in eval mode too: {_DROPS}")
    return x


@_reads("native_dropout")
def _native_dropout(call: Call, x: Rows, share: float, train: bool | None) -> tuple[Rows, None]:
    return _dropout(call, x, share, bool(train)), None


@_reads("to", "_to_copy", "float", "double", "half")
def _cast(call: Call, x: Rows, *_: Any, **__: Any) -> Rows:
    if not call.made.dtype.is_floating_point:
        raise ModelLoadError(f"a cast to {str(call.made.dtype).removeprefix('torch.')} is no step of an MLP")
    return x


@_reads(
    "view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as", "reshape_as", "ravel", "view_copy",
    "_reshape_alias",
)  # fmt: skip
def _view(call: Call, x: Rows, *_: Any) -> Rows:
    if not call.made.dtype.is_floating_point:
        raise ModelLoadError("a view as another dtype is no step of an MLP")
    return call.view(x)


@_reads("squeeze", "squeeze_copy")
def _squeeze(call: Call, x: Rows, dim: Any = None) -> Rows:
    axes = range(x.index.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return removed(x, list(axes))


@_reads("unsqueeze")
def _unsqueeze(call: Call, x: Rows, dim: int) -> Rows:
    return inserted(x, dim)


@_reads("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(call: Call, x: Any, *_: Any, **__: Any) -> Any:
    if isinstance(x, Tensor):  # expand_as, of a constant to rows
        sizes, _at = call.shape()
        return x.expand(sizes)
    return expanded(x, *call.shape())


@_reads("permute")
def _permute(call: Call, x: Rows, dims: Sequence[int]) -> Rows:
    return permuted(x, dims)


@_reads("transpose", "swapaxes", "swapdims")
def _transpose(call: Call, x: Rows, first: int, second: int) -> Rows:
    axes = list(range(x.index.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return permuted(x, axes)


@_reads("t", "numpy_T", "mT", "matrix_H", "adjoint")
def _t(call: Call, x: Rows) -> Rows:
    return x if x.index.ndim < 2 else _transpose(call, x, -1, -2)


@_reads("movedim", "moveaxis")
def _movedim(call: Call, x: Rows, source: Any, target: Any) -> Rows:
    return permuted(x, _moved(x.index.ndim, source, target))


def _moved(ndim: int, source: Any, target: Any) -> list[int]:
    sources = [each % ndim for each in ([source] if isinstance(source, int) else source)]
    targets = [each % ndim for each in ([target] if isinstance(target, int) else target)]
    order = [axis for axis in range(ndim) if axis not in sources]
    for to, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(to, axis)
    return order


@_reads("repeat", "tile")
def _repeat(call: Call, x: Rows, repeats: Sequence[Any]) -> Rows:
    counts = [one_row(each) for each in repeats]
    ahead = len(counts) - x.index.ndim
    index = x.index.reshape((1,) * ahead + x.shape)
    if counts[x.rows_at + ahead] != 1:
        raise ModelLoadError("it repeats rows: every row of an answer comes from one row of the input")
    return Rows(x.node, np.tile(index, counts), x.rows_at + ahead)


@_reads("repeat_interleave")
def _repeat_interleave(call: Call, x: Rows, repeats: Any, dim: int | None = None, **_: Any) -> Rows:
    if not isinstance(repeats, int) or dim is None or x.axis(dim) == x.rows_at:
        raise ModelLoadError("expected one number of repetitions, of features")
    return Rows(x.node, np.repeat(x.index, repeats, axis=x.axis(dim)), x.rows_at)


# Parts, and parts side by side


@_reads("select", "select_copy")
def _select(call: Call, x: Rows, dim: int, index: int) -> Rows:
    return taken(x, dim, index)


@_reads("slice", "slice_copy", "narrow")
def _slice(call: Call, x: Rows, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Rows:
    if x.axis(dim) == x.rows_at:
        if isinstance(call.made.shape[x.rows_at], torch.SymInt) and start in (None, 0) and step == 1:
            sizes, _ = call.shape()
            if sizes[x.rows_at] == x.shape[x.rows_at]:
                return x  # all rows: x[:]
    end = end if end is None or not isinstance(end, torch.SymInt) else None
    return taken(x, dim, slice(start, end, step))


OPERATORS["narrow"] = lambda call, x, dim, start, length: taken(x, dim, slice(start, start + length))


@_reads("split", "split_with_sizes", "split_copy", "split_with_sizes_copy", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")  # fmt: skip
def _split(call: Call, x: Rows, _: Any, dim: int = 0) -> list[Rows]:
    """In the sizes that torch says."""
    parts, start = [], 0
    for each in call.made:
        size = each.shape[x.axis(dim)]
        if isinstance(size, torch.SymInt):
            raise ModelLoadError("it splits the rows")
        parts.append(taken(x, dim, slice(start, start + size)))
        start += size
    return parts


@_reads("unbind")
def _unbind(call: Call, x: Rows, dim: int = 0) -> list[Rows]:
    return [taken(x, dim, position) for position in range(x.shape[x.axis(dim)])]


@_reads("index_select")
def _index_select(call: Call, x: Rows, dim: int, index: Any) -> Rows:
    return taken(x, dim, _positions(index))


@_reads("index")
def _index(call: Call, x: Any, indices: Sequence[Any]) -> Rows:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if not isinstance(x, Rows) or len(given) != 1:
        raise ModelLoadError(
            "it picks features by more than one index, or by values: expected constant positions"
        )
    axis, index = given[0]
    return taken(x, axis, _positions(index))


def _positions(index: Any) -> Any:
    if not isinstance(index, Tensor):
        raise ModelLoadError("it picks features by computed positions: expected constant ones")
    positions = index.detach().cpu().numpy()
    if positions.ndim != 1:
        raise ModelLoadError("expected positions along one axis")
    return np.flatnonzero(positions) if positions.dtype == bool else positions.astype(np.intp)


@_reads("flip")
def _flip(call: Call, x: Rows, dims: Sequence[int]) -> Rows:
    for dim in dims:
        x = taken(x, dim, slice(None, None, -1))
    return x


@_reads("roll")
def _roll(call: Call, x: Rows, shifts: Any, dims: Any = ()) -> Rows:
    for shift, dim in zip(_listed(shifts), _listed(dims), strict=True):
        x = taken(x, dim, np.roll(np.arange(x.shape[x.axis(dim)]), shift))
    return x


@_reads("cat", "concat", "concatenate")
def _cat(call: Call, parts: Sequence[Any], dim: int = 0) -> Rows:
    kept = [part for part in parts if not isinstance(part, Tensor) or part.numel()]
    return call.builder.concat([_matrix(call, part) for part in kept], dim)


@_reads("stack")
def _stack(call: Call, parts: Sequence[Any], dim: int = 0) -> Rows:
    return _cat(
        call,
        [part.unsqueeze(dim) if isinstance(part, Tensor) else inserted(part, dim) for part in parts],
        dim,
    )


@_reads("hstack", "column_stack")
def _hstack(call: Call, parts: Sequence[Any]) -> Rows:
    return _cat(
        call,
        [inserted(part, 1) if isinstance(part, Rows) and part.index.ndim == 1 else part for part in parts],
        1,
    )


@_reads("copy")
def _copy(call: Call, target: Any, source: Any, *_: Any) -> Any:
    """What a write to a part of a value is once it has a result of its own."""
    if isinstance(source, Rows):
        return expanded(source, *call.shape())
    return call.builder.filled(call.constant(source), target)


@_reads("slice_scatter")
def _slice_scatter(call: Call, x: Rows, part: Rows, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Rows:  # noqa: PLR0917
    if x.axis(dim) == x.rows_at and start in (None, 0) and step == 1:
        return part  # all rows
    return call.builder.replaced(x, dim, slice(start, None if isinstance(end, torch.SymInt) else end, step), part)


@_reads("select_scatter")
def _select_scatter(call: Call, x: Rows, part: Rows, dim: int, index: int) -> Rows:
    return call.builder.replaced(x, dim, index, part)


@_reads("zeros_like", "new_zeros")
def _zeros_like(call: Call, *_: Any, **__: Any) -> Tensor:
    return torch.zeros(call.shape()[0], dtype=torch.float64)


@_reads("ones_like", "new_ones")
def _ones_like(call: Call, *_: Any, **__: Any) -> Tensor:
    return torch.ones(call.shape()[0], dtype=torch.float64)


@_reads("full_like", "new_full")
def _full_like(call: Call, x: Rows, *arguments: Any, **__: Any) -> Tensor:
    return torch.full(call.shape()[0], float(arguments[-1]), dtype=torch.float64)


# Over features


def _reduction(kind: Literal["sum", "mean", "max", "min", "prod"]) -> Reader:
    def read(call: Call, x: Rows, dim: Any = None, keepdim: bool = False, **_: Any) -> Rows:
        if dim is None or dim == []:
            raise ModelLoadError(
                "it goes over the rows: the answer for a row must not depend on the rows beside it"
            )
        return call.builder.reduce(kind, x, _listed(dim), keep=keepdim)

    return read


OPERATORS.update(
    {"sum": _reduction("sum"), "mean": _reduction("mean"), "prod": _reduction("prod")},
    amax=_reduction("max"),
    amin=_reduction("min"),
)


@_reads("max")
def _max(call: Call, x: Rows, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(call, "max", x, (dim, keepdim))


@_reads("min")
def _min(call: Call, x: Rows, dim: Any = None, keepdim: bool = False) -> Any:
    return _extreme(call, "min", x, (dim, keepdim))


def _extreme(call: Call, kind: Literal["max", "min"], x: Any, options: tuple[Any, bool]) -> Any:
    """max(x, y), or the maximum over an axis; positions are not read."""
    dim, keep = options
    if isinstance(dim, (Rows, Tensor)):
        return call.builder.arithmetic(
            "maximum" if kind == "max" else "minimum", call.operand(x), call.operand(dim)
        )
    return _reduction(kind)(call, x, dim, keep), None


@_reads("var")
def _var(
    call: Call, x: Rows, dim: Any = None, correction: Any = None, keepdim: bool = False, **options: Any
) -> Rows:
    """var.correction, and var.dim with its flag `unbiased`."""
    correction = options.get("unbiased", correction)
    return call.builder.variance(
        x, _listed(dim), 1.0 if correction is None else float(correction), keep=keepdim
    )


@_reads("std")
def _std(call: Call, *arguments: Any, **options: Any) -> Rows:
    return call.builder.function("sqrt", _var(call, *arguments, **options))


@_reads("var_mean")
def _var_mean(
    call: Call, x: Rows, dim: Any = None, correction: Any = None, keepdim: bool = False, **options: Any
) -> Any:
    variance = _var(call, x, dim, correction, keepdim, **options)
    return variance, call.builder.reduce("mean", x, _listed(dim), keep=keepdim)


@_reads("std_mean")
def _std_mean(call: Call, *arguments: Any, **options: Any) -> Any:
    variance, mean = _var_mean(call, *arguments, **options)
    return call.builder.function("sqrt", variance), mean


@_reads("linalg_vector_norm", "norm", "linalg_norm")
def _vector_norm(
    call: Call, x: Rows, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Rows:
    order = 2 if order is None else order
    if dim is None or order not in (1, 2):
        raise ModelLoadError(
            f"the norm of order {order} over {dim} is no step of an MLP: expected 1 or 2, over features"
        )
    sizes = call.builder.function("abs" if order == 1 else "square", x)
    total = call.builder.reduce("sum", sizes, _listed(dim), keep=keepdim)
    return total if order == 1 else call.builder.function("sqrt", total)


@_reads("logsumexp")
def _logsumexp(call: Call, x: Rows, dim: Any, keepdim: bool = False) -> Rows:
    return call.builder.log_sum_exp(x, _listed(dim), keep=keepdim)


@_reads("softmax", "_softmax")
def _softmax(call: Call, x: Rows, dim: int, *_: Any, **__: Any) -> Rows:
    return call.builder.softmax(x, dim)


@_reads("log_softmax", "_log_softmax")
def _log_softmax(call: Call, x: Rows, dim: int, *_: Any, **__: Any) -> Rows:
    return call.builder.softmax(x, dim, log=True)


# Norms


def _last(shape: Sequence[int]) -> list[int]:
    return list(range(-len(shape), 0))


@_reads("layer_norm")
def _layer_norm(
    call: Call,
    x: Rows,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Rows:  # noqa: PLR0917 - ATen's arguments
    return call.builder.norm(
        "layer", x, _last(shape), eps=eps, weight=call.optional(weight), bias=call.optional(bias)
    )


@_reads("native_layer_norm")
def _native_layer_norm(call: Call, *arguments: Any) -> Any:
    return _layer_norm(call, *arguments), None, None


@_reads("rms_norm")
def _rms_norm(
    call: Call, x: Rows, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Rows:
    if eps is None:
        eps = float(torch.finfo(call.made.dtype).eps)
    return call.builder.norm("rms", x, _last(shape), eps=eps, weight=call.optional(weight))


@_reads("_fused_rms_norm")
def _fused_rms_norm(
    call: Call, x: Rows, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    if eps is None:
        eps = float(torch.finfo(call.made[0].dtype).eps)
    return _rms_norm(call, x, shape, weight, eps), None


@_reads("batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: Call, x: Rows, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any) -> Any:  # noqa: PLR0917 - ATen's arguments
    functional = len(options) == 2  # without the flag of training: momentum, eps
    if mean is None or variance is None or (not functional and options[0]):
        raise ModelLoadError("it keeps no running statistics: its output depends on the batch")
    made = call.builder.batch_norm(
        x,
        call.tensor(mean),
        call.tensor(variance),
        weight=call.optional(weight),
        bias=call.optional(bias),
        eps=options[1] if functional else options[2],
    )
    return (made, None, None) if functional else made


@_reads("group_norm")
def _group_norm(
    call: Call, x: Rows, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Rows:  # noqa: PLR0917 - ATen's arguments
    if x.rows_at != 0 or x.index.ndim < 2:
        raise ModelLoadError("expected (rows, features)")
    parts = reshaped(x, (x.shape[0], groups, -1), 0)
    made = reshaped(call.builder.norm("layer", parts, [-1], eps=eps), x.shape, 0)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    for op, tensor in (("multiply", weight), ("add", bias)):
        if tensor is not None:
            constant = call.constant(tensor)
            vector = Constant(constant.array.reshape(shape), constant.origin, constant.dtype)
            made = call.builder.arithmetic(op, made, vector)  # type: ignore[arg-type]
    return made


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
