# SPDX-License-Identifier: Apache-2.0
"""The named inputs of a spec as the decoders need them. Made once per version: a vocabulary may have millions of
words."""

from __future__ import annotations

from typing import Any

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.inputs import Add, Clip, Divide, Field, Input, Modulo, Multiply, Replace
from fused_mlp.service import _engine


def layout_of(spec: MlpSpec) -> _engine.InputLayout | None:
    """None: one input of floats."""
    if spec.inputs is None:
        return None
    return _engine.InputLayout([_input(each) for each in spec.inputs])


def _input(each: Input) -> _engine.NamedInput:
    kinds = {
        "string": "strings",
        "float32": "floats",
        "float64": "floats",
        "float16": "floats",
        "bfloat16": "floats",
    }
    unknown = -1 if each.unknown is None else each.unknown
    known = None if each.vocabulary is None else _engine.Vocabulary(each.vocabulary, unknown)
    kind = _engine.InputKind[kinds.get(each.dtype, "whole")]
    return _engine.NamedInput(
        each.name, kind, each.shape, each.ragged, known, [_field(f) for f in each.fields]
    )


def _field(field: Field) -> _engine.InputField:
    positions = field.positions or ()
    return _engine.InputField(field.size or 0, [_rule(rule) for rule in field.rules], positions)


def _rule(rule: Any) -> tuple[_engine.RuleOp, tuple[int, ...]]:
    op = _engine.RuleOp
    match rule:
        case Add():
            return op.add, rule.values
        case Multiply():
            return op.multiply, (rule.factor,)
        case Divide():
            return op.divide, (rule.divisor,)
        case Modulo():
            return op.remainder if rule.truncated else op.modulo, (rule.divisor,)
        case Clip():
            return op.clip, (rule.least, rule.most)
        case Replace():
            return op.replace, (rule.found, rule.by)
    raise AssertionError(f"unknown rule: {rule}")
