# SPDX-License-Identifier: Apache-2.0
"""Programs in one line: readable for skips, gates and heads, and never long."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.summary import MAX_LENGTH
from tests.support.programs import actor_critic, tower


def linear(name: str, source: str, width: int) -> dict[str, Any]:
    return {"op": "linear", "name": name, "input": source, "out_features": width}


def function(name: str, source: str, text: str) -> dict[str, Any]:
    return {"op": "elementwise", "name": name, "input": source, "function": text}


def two(op: str, name: str, *sources: str) -> dict[str, Any]:
    return {"op": op, "name": name, "inputs": sources}


def program(in_features: int, *steps: dict[str, Any], **fields: Any) -> MlpSpec:
    return MlpSpec.model_validate({"in_features": in_features, "steps": steps, **fields})


def nerf() -> MlpSpec:
    steps, value = [], "input"
    for index in range(8):
        if index == 5:
            steps.append(two("concat", "skip", "input", value))
            value = "skip"
        steps += [linear(f"l{index}", value, 256), function(f"a{index}", f"l{index}", "relu")]
        value = f"a{index}"
    return program(63, *steps, linear("out", value, 4))


def highway() -> MlpSpec:
    return program(
        64,
        linear("t", "input", 64),
        function("gate", "t", "sigmoid"),
        linear("h", "input", 64),
        function("act", "h", "relu"),
        two("multiply", "y", "gate", "act"),
        two("add", "z", "y", "input"),
    )


def swiglu() -> MlpSpec:
    norm = {"op": "norm", "name": "n", "input": "input", "kind": "rms"}
    gated = {
        "op": "gated",
        "name": "up",
        "input": "n",
        "out_features": 512,
        "function": "silu",
        "bias": False,
    }
    return program(128, norm, gated, linear("down", "up", 128), two("add", "out", "down", "input"))


def separate_heads() -> MlpSpec:
    steps = [
        step
        for name, width in (("pi", 4), ("v", 1))
        for step in (
            linear(f"{name}.0", "input", 64),
            function(f"{name}.1", f"{name}.0", "tanh"),
            linear(name, f"{name}.1", width),
        )
    ]
    return program(8, *steps, outputs=[{"name": name, "value": name} for name in ("pi", "v")])


def test_a_function_that_no_layer_has_is_still_a_chain_to_read() -> None:
    spec = program(784, linear("a", "input", 512), function("b", "a", "quick_gelu"), linear("c", "b", 10))
    assert spec.summary() == "784-512-10 quick_gelu"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (tower(), "12 -> 3 x [ln, 24 gelu, 12, +] -> 3"),
        (nerf(), "63 -> 5 x [256 relu] -> concat input -> 3 x [256 relu] -> 4"),
        (highway(), "64 -> 64 sigmoid | 64 relu -> * -> +"),
        (swiglu(), "128 -> rms -> 512 gated silu -> 128 -> +"),
        (actor_critic(), "8 -> 16 tanh => pi 4 softmax, v 1"),
        (separate_heads(), "8 => pi: 64 tanh -> 4, v: 64 tanh -> 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_line(spec: MlpSpec, text: str) -> None:
    assert spec.summary() == text


def test_many_outputs_are_counted() -> None:
    names = [f"head_{index}" for index in range(40)]
    spec = program(
        8, *(linear(name, "input", 3) for name in names), outputs=[{"name": n, "value": n} for n in names]
    )
    assert spec.summary().startswith("8 => head_0 3, head_1 3")
    assert spec.summary().endswith("... 40 outputs")
    assert len(spec.summary()) <= MAX_LENGTH


def test_largest_program_is_short_and_quick() -> None:
    """No two steps alike: nothing folds."""
    steps, value = [], "input"
    for index in range(2048):
        steps += [
            linear(f"l{index}", value, 1 + index),
            function(f"a{index}", f"l{index}", f"x * {index + 2}"),
        ]
        value = f"a{index}"
    steps = [*steps[:-1], two("add", "last", "l2047", "l2047")]
    spec = program(3, *steps)
    started = time.process_time()
    text = spec.summary()
    # It takes some 50 ms; without its bounds, minutes.
    assert time.process_time() - started < 5
    assert len(text) <= MAX_LENGTH
    assert text.startswith("3 -> 1 x * 2")
    assert text.endswith("2048 -> +")
