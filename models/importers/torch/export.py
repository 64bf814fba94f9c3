# SPDX-License-Identifier: Apache-2.0
"""From a prepared module to a graph of ATen operators, by torch.export with any number of rows. Owns how outputs are
named, and the words for what torch.export cannot follow."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import io
import linecache
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.torch.arguments import Arguments
from fused_mlp.models.importers.torch.aten.refusals import REFUSED

ROWS = 5  # of the example that is traced; any number above 1 would do
_UNUSUAL = re.compile(r"[^A-Za-z0-9_./:-]+")  # in the name of an output
PREFIX = "module."  # of the names of everything within NamedOutputs
_OWN_FILES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).resolve().parents[1]),
    str(Path(linecache.__file__).resolve().parent),
)


class AnswerError(ModelLoadError):
    """The module's answer cannot be served, whatever rows it is given."""


class NamedOutputs(nn.Module):
    """A module that takes and answers a tuple of tensors, whatever form the arguments and the answer of the one within
    have. `names` are known once it has run. `dtype`: what it is asked to compute in."""

    def __init__(
        self, module: nn.Module, arguments: Arguments | None = None, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype
        self.names: list[str] = []
        self._arguments = arguments

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = list(_leaves(self.answer(tensors), ""))
        if not found:
            raise AnswerError(f"{type(self.module).__name__} answers no tensors")
        self.names = [_UNUSUAL.sub("_", name).lstrip("./:-") or "output" for name, _ in found]
        return tuple(tensor for _, tensor in found)

    def answer(self, tensors: Sequence[Tensor]) -> Any:
        """In whatever form the module answers."""
        if self._arguments is None:
            return self.module(*tensors)
        return self._arguments.call(self.module, tensors)


def _leaves(answer: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Dictionary keys and fields are names as they are; positions become output_0, output_1."""

    def below(key: str) -> str:
        return f"{name}.{key}" if name else key

    if isinstance(answer, Tensor):
        yield name, answer
    elif answer is None:
        return
    elif isinstance(answer, Mapping):
        for key, each in answer.items():
            yield from _leaves(each, below(str(key)))
    elif isinstance(answer, tuple) and hasattr(answer, "_fields"):
        for key in answer._fields:
            yield from _leaves(getattr(answer, key), below(key))
    elif isinstance(answer, (tuple, list)):
        if len(answer) == 1:
            yield from _leaves(answer[0], name)
            return
        for position, each in enumerate(answer):
            yield from _leaves(each, below(f"output_{position}"))
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        for field in dataclasses.fields(answer):
            yield from _leaves(getattr(answer, field.name), below(field.name))
    else:
        raise AnswerError(_no_tensors(answer, name))


def _no_tensors(answer: Any, name: str) -> str:
    kind, remedy = type(answer).__name__, ""
    if isinstance(answer, torch.distributions.Distribution):
        kind = f"torch.distributions.{kind}"
        remedy = "; answer its parameters, such as mean and scale"
    what = f"{name!r} as {kind}" if name else kind
    return f"it answers {what}: expected tensors, in a tuple, dict or dataclass{remedy}"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what torch.export prints about code that it cannot follow; the refusal says it in one line."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def run_once(module: NamedOutputs, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's code; theirs to see when they run it
        answers: tuple[Tensor, ...] = module(*rows)
    return answers


def export_rows(module: NamedOutputs, rows: Sequence[Tensor]) -> ExportedProgram:
    """rows: (ROWS, ...) each."""
    try:
        with torch.no_grad(), quietly():
            exported = _export(module, tuple(rows))
            if _has_hidden_writes(exported) or _has_vmap(exported):
                exported = exported.run_decompositions({})
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(_words(module.module, error, _refused_operator(module, rows))) from error
    return exported


def _export(module: NamedOutputs, rows: tuple[Tensor, ...]) -> ExportedProgram:
    shapes = (tuple({0: Dim("rows", min=2)} for _ in rows),)
    try:
        return export(module, rows, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        if "Constraints violated" not in str(error):
            raise
        with _symbolic_lengths():
            return export(module, rows, dynamic_shapes=shapes, strict=False)


@contextlib.contextmanager
def _symbolic_lengths() -> Iterator[None]:
    """len(x) of a tensor that is traced is its number of rows, whatever that is: Python makes a number of it, which
    would fix the rows."""
    real = builtins.len

    def length(value: Any) -> Any:
        return value.shape[0] if isinstance(value, Tensor) and value.dim() else real(value)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = real


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of the operators that run, the dtypes of what they make, and the largest number that is added to
    floats in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.dtypes: set[torch.dtype | None] = set()
        self.added = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.partition("::")[2].rstrip("_"))
        made = func(*args, **(kwargs or {}))
        self.dtypes.add(dtype := getattr(made, "dtype", None))
        if dtype == torch.float64 and self.names[-1] in ("add", "sub", "rsub"):
            numbers = (each for each in args if not isinstance(each, Tensor) or each.dim() == 0)
            self.added = max(self.added, *(abs(float(each)) for each in numbers), 0.0)
        return made


def makes_doubles(module: NamedOutputs, rows: Sequence[Tensor]) -> bool:
    with _Operators() as seen:
        run_once(module, rows)
    return torch.float64 in seen.dtypes


def check_doubles(module: NamedOutputs, rows: Sequence[Tensor]) -> None:
    """`module` is in float32, `rows` are as its caller gives them, some in float64, which become float32 in a
    request."""
    with _Operators() as seen, contextlib.suppress(RuntimeError):  # it takes no float64
        run_once(module, rows)
    if seen.added >= 1 << 20:
        raise ModelLoadError(
            f"it subtracts {seen.added:,.0f} in float64, and a request keeps seven digits of a float: take whole "
            "numbers, (time - 1_700_000_000).float() of int64, or subtract before"
        )


def _refused_operator(module: NamedOutputs, rows: Sequence[Tensor]) -> str:
    """The first operator that is refused, of a module that cannot be exported for another reason."""
    with _Operators() as seen:
        run_once(module, rows)
    return next((name for name in seen.names if name in REFUSED), "")


def _has_hidden_writes(exported: ExportedProgram) -> bool:
    """Whether something is written to that is read under another name, too: a slice, or a value kept for later."""
    for node in exported.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            written = node.args[0]
            if not isinstance(written, Node) or len(written.users) > 1 or _is_view(written):
                return True
    return False


def _has_vmap(exported: ExportedProgram) -> bool:
    """Whether part of it is written for one of several values, which torch knows how to write for all of them."""
    return any("functorch" in str(getattr(node.target, "__module__", "")) for node in exported.graph.nodes)


def _is_view(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an input, or a part of a tuple
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def _words(module: nn.Module, error: Exception, operator: str) -> str:
    name, text = type(error).__name__, str(error)
    line = failing_line(error)
    where = f"{type(module).__name__}.forward" + (f" ({line})" if line else "")
    if operator:
        return f"{where}: {operator.strip('_').removesuffix('_forward')}: {REFUSED[operator]}"
    if "DataDependent" in name or "data-dependent" in text:
        return (
            f"{where}: what it does next depends on the values of the rows (an if, a loop, .item()); "
            "write it with torch.where, clamp, maximum or minimum"
        )
    if "ConstraintViolation" in name or "Constraints violated" in text or "not dynamic" in text:
        return (
            f"{where}: its forward fixes the number of rows, or goes over the rows; "
            "expected one answer for each row, whatever their number"
        )
    return f"{where}: torch.export cannot follow it: {name}: {first_line(error)}"


def failing_line(error: BaseException) -> str:
    """`model.py:12, `if x.sum() > 0:``: the innermost line of the user's own code."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        # Frozen modules have names in angle brackets, the standard library is beside this one.
        if not path.startswith("<") and not str(Path(path).resolve()).startswith(_OWN_FILES):
            code = re.sub(r"\s+", " ", linecache.getline(path, trace.tb_lineno).strip())
            found = f"{Path(path).name}:{trace.tb_lineno}, `{code[:80]}`"
        trace = trace.tb_next
    return found
