# SPDX-License-Identifier: Apache-2.0
"""Programs drawn for a terminal."""

from __future__ import annotations

from fused_mlp.service.cli.output.graph import draw_program
from fused_mlp.service.client import OutputInfo, StepInfo, VersionInfo


def drawn(steps: list[tuple[str, str, str]], outputs: dict[str, str], input_shape=(8,)) -> list[str]:
    """steps: name, op (or op and detail), inputs by blanks. All values are 8 wide. outputs: name -> value."""
    version = VersionInfo(
        version=1,
        state="READY",
        reason="",
        in_features=8,
        out_features=8,
        layers=(),
        output_activation="",
        dtype="float32",
        parameters=0,
        labels=(),
        description="",
        kernels=(),
        example=(),
        variant="fused",
        outputs=tuple(OutputInfo(name, value, 8, name.startswith("v")) for name, value in outputs.items()),
        input_shape=input_shape,
        summary="",
        steps=tuple(
            StepInfo(name, op.partition(" ")[0], tuple(inputs.split()), 8, op.partition(" ")[2], "")
            for name, op, inputs in steps
        ),
    )
    return [line.rstrip() for line in draw_program(version)]


def test_residual_forks_and_joins() -> None:
    steps = [("fc", "linear", "input"), ("act", "elementwise relu", "fc"), ("sum", "add", "input act")]
    assert drawn(steps, {"output": "sum"}) == [
        "●    input                8",
        "├─╮",
        "│ ●  fc     linear, relu  8",
        "├─╯",
        "●    sum    +             8  => output",
    ]


def test_repeated_blocks_are_drawn_once() -> None:
    steps, value = [], "input"
    for index in range(20):
        block = f"blocks.{index}"
        steps += [
            (f"{block}.norm", "norm layer, eps 1e-05", value),
            (f"{block}.fc", "linear", f"{block}.norm"),
            (f"{block}.add", "add", f"{value} {block}.fc"),
        ]
        value = f"{block}.add"
    assert drawn(steps, {"output": value}) == [
        "●    input                                    8",
        "├─╮",
        "│ ●  blocks.0-19.norm  layer norm, eps 1e-05  8 ┐",
        "│ ●  blocks.0-19.fc    linear                 8 │",
        "├─╯                                             │",
        "●    blocks.0-19.add   +                      8 ┘ 20 x  => output",
    ]


def test_heads_are_named_where_they_are_made() -> None:
    steps = [
        ("trunk", "linear", "input"),
        ("pi", "linear", "trunk"),
        ("p", "softmax", "pi"),
        ("v", "linear", "trunk"),
    ]
    assert drawn(steps, {"pi": "p", "v": "v"}) == [
        "●    input                   8",
        "●    trunk  linear           8",
        "├─╮",
        "│ ●  pi     linear, softmax  8  => pi",
        "●    v      linear           8  => v (rows,)",
    ]


def test_block_that_is_read_from_outside_is_not_folded() -> None:
    steps = [("a.0", "linear", "input"), ("a.1", "linear", "a.0"), ("sum", "add", "a.0 a.1")]
    assert drawn(steps, {"output": "sum"}) == [
        "●    input          8",
        "●    a.0    linear  8",
        "├─╮",
        "│ ●  a.1    linear  8",
        "├─╯",
        "●    sum    +       8  => output",
    ]


def test_lanes_cross_and_a_value_may_be_read_twice_by_one_step() -> None:
    steps = [
        ("gate", "linear", "input"),
        ("value", "slice 0:8", "input"),
        ("twice", "multiply", "gate gate"),
        ("out", "concat", "input twice value gate"),
    ]
    assert drawn(steps, {"output": "out"}, (1, 2, 4)) == [
        "●        input  shape (1, 2, 4)  8",
        "├─╮",
        "│ ●      gate   linear           8",
        "├─┼─╮",
        "│ │ ●    value  slice 0:8        8",
        "│ ├─┼─╮",
        "│ │ │ ●  twice  *                8",
        "├─┼─┼─╯",
        "├─┼─╯",
        "├─╯",
        "●        out    concat           8  => output",
    ]
