# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them, small enough for Triton's interpreter, most of them for one launch."""

from __future__ import annotations

from collections.abc import Iterator

from fused_mlp.kernels.cuda.check.models import Sketch
from fused_mlp.models import MlpSpec


def written(dtype: str) -> Iterator[tuple[str, MlpSpec]]:
    for width, hidden in ((20, 50), (33, 65), (129, 70)):
        sketch = Sketch(width, dtype)
        x = "input"
        for _ in range(2):
            x = sketch.combine(
                "add", sketch.linear(sketch.linear(sketch.norm(x, "layer"), hidden, "gelu"), width), x
            )
        yield f"pre-norm {width}", sketch.spec(out=sketch.linear(sketch.norm(x, "layer"), 3))

    sketch = Sketch(13, dtype)
    x = sketch.linear("input", 40)
    for _ in range(2):
        h = sketch.linear(sketch.affine(x), 60, "relu")
        x = sketch.combine("add", x, sketch.linear(h, 40))
    yield "tabular ResNet", sketch.spec(out=sketch.linear(sketch.function(sketch.affine(x), "relu"), 1))

    sketch = Sketch(63, dtype)
    h = sketch.linear(sketch.linear("input", 50, "relu"), 50, "relu")
    h = sketch.linear(sketch.combine("concat", "input", h), 50, "relu")
    rgb, density = sketch.linear(h, 3, "sigmoid"), sketch.linear(h, 1, "softplus")
    yield "skip", sketch.spec(out=sketch.combine("concat", rgb, density))

    sketch = Sketch(17, dtype)
    h = sketch.linear("input", 64, "tanh")
    pi = sketch.linear(sketch.linear(h, 33, "tanh"), 70, "softmax")
    yield "heads", sketch.spec(pi=pi, v=sketch.linear(h, 1), state=h)

    sketch = Sketch(19, dtype)
    h = sketch.norm(sketch.gated("input", 45, "silu"), "rms")
    h = sketch.norm(sketch.gated(h, 45, "x"), "l2")
    yield "gates with norms", sketch.spec(out=sketch.function(h, "log_softmax"))

    sketch = Sketch(30, dtype)
    h = sketch.linear("input", 77)
    left, right = sketch.part(h, 0, 30), sketch.part(h, 47, 77)
    gate = sketch.combine("multiply", sketch.function(left, "sigmoid"), right)
    mixed = sketch.combine("maximum", gate, sketch.combine("subtract", "input", gate))
    soft = sketch.function(sketch.combine("concat", mixed, sketch.part(h, 30, 47)), "softmax")
    yield "split halves", sketch.spec(out=sketch.linear(soft, 9), again=soft, first="input")
