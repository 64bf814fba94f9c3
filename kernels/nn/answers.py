# SPDX-License-Identifier: Apache-2.0
"""The form of what a module answers (a tensor, a tuple, a dict, a dataclass), apart from its tensors, and the same form
with other tensors. The order of the tensors is that of the outputs of `fused_mlp.from_torch`."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor


class Form(NamedTuple):
    """`kind`: tensor, none, pairs, fields, positions or arguments (how `cls` is made of its parts)."""

    kind: str
    cls: Any = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Form, ...] = ()
    shape: tuple[int, ...] = ()  # of a tensor: what one row of it has


def form_of(answer: Any) -> Form:
    """`answer`: to (rows, ...) inputs."""
    if isinstance(answer, Tensor):
        return Form("tensor", shape=tuple(answer.shape[1:]))
    if answer is None:
        return Form("none")
    kind, keys, parts = _taken_apart(answer)
    return Form(kind, type(answer), keys, tuple(form_of(part) for part in parts))


def tensors_of(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        yield answer
    elif answer is not None:
        for part in _taken_apart(answer)[2]:
            yield from tensors_of(part)


def built(form: Form, tensors: list[Tensor]) -> Any:
    """Takes as many of the tensors, from the front, as the form has."""
    if form.kind == "tensor":
        return tensors.pop(0)
    if form.kind == "none":
        return None
    parts = [built(part, tensors) for part in form.parts]
    if form.kind == "pairs":
        return form.cls(zip(form.keys, parts, strict=True))
    if form.kind == "fields":
        return form.cls(**dict(zip(form.keys, parts, strict=True)))
    return form.cls(parts) if form.kind == "positions" else form.cls(*parts)


def _taken_apart(answer: Any) -> tuple[str, tuple[Any, ...], list[Any]]:
    if isinstance(answer, Mapping):
        kind = "pairs" if type(answer) in (dict, OrderedDict) else "fields"
        return kind, tuple(answer), list(answer.values())
    if isinstance(answer, tuple) and hasattr(answer, "_fields"):
        return "arguments", (), list(answer)
    if isinstance(answer, (tuple, list)):
        return "positions", (), list(answer)
    if not dataclasses.is_dataclass(answer):
        raise TypeError(f"expected tensors, in a tuple, dict or dataclass, got {type(answer).__name__}")
    keys = tuple(field.name for field in dataclasses.fields(answer))
    return "fields", keys, [getattr(answer, key) for key in keys]
