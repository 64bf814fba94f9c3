# SPDX-License-Identifier: Apache-2.0
"""Norms that are written out, x * rsqrt(mean(x ** 2) + eps) and its relatives, recognised by what they compute."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fused_mlp.models.importers.building.activation_match import POINTS
from fused_mlp.models.importers.building.nodes import CombineNode, ElementNode, LinearNode, Node
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.program import formula
from fused_mlp.models.program.activations import Floats

# Sums of squares at which a divisor is looked at.
_SUMS = np.array([0.0, 1e-30, 1e-24, 1e-18, 1e-14, 1e-9, 1e-6, 1e-3, 1.0, 30.0, 1e3, 1e6])
_ONE = 8  # the place of 1.0 in it
_CLOSE = 1e-9  # constants are in float64: only the order of roundings differs

Found = tuple[Literal["layer", "rms", "l2"], Node, float, float]


def normalized(op: Literal["multiply", "divide"], numerator: Rows, length: Rows) -> Found | None:
    """The norm that numerator * length, or numerator / length, is: its kind, what it is of, its eps, and the factor
    that is left over. None if it is none."""
    if length.node.width != 1 or numerator.node.width < 2 or not numerator.is_whole:
        return None
    base, inverse = _function(length.node)
    if not isinstance(base, LinearNode) or base.role not in ("sum", "mean") or base.bias is not None:
        return None
    features = base.sources[0].width
    if features != numerator.node.width or not _are_squares(base.sources[0], numerator.node):
        return None
    with np.errstate(all="ignore"):
        divisor = inverse(_SUMS) if op == "divide" else 1 / inverse(_SUMS)
    means = _SUMS / features if base.role == "sum" else _SUMS
    source = _centred_source(numerator.node)
    return _rooted(divisor, means, numerator.node, source) or _bounded(
        divisor, means, features, numerator.node
    )


def _rooted(divisor: Floats, means: Floats, node: Node, centred: Node | None) -> Found | None:
    """sqrt(a * mean + b)."""
    squares = divisor * divisor
    b = float(squares[0])
    a = float((squares[_ONE] - b) / means[_ONE])
    if not (math.isfinite(a) and math.isfinite(b) and a > 0 and 0 <= b / a <= 1):
        return None
    if not np.allclose(squares, a * means + b, rtol=_CLOSE, atol=0):
        return None
    return ("rms" if centred is None else "layer"), centred or node, _tidy(b / a), _tidy(1 / math.sqrt(a))


def _bounded(divisor: Floats, means: Floats, features: int, node: Node) -> Found | None:
    """max(c * length, e)."""
    lengths = np.sqrt(means * features)
    c, e = float(divisor[-1] / lengths[-1]), float(divisor[0])
    if not (math.isfinite(c) and math.isfinite(e) and c > 0 and 0 <= e / c <= 1):
        return None
    if not np.allclose(divisor, np.maximum(c * lengths, e), rtol=_CLOSE, atol=0):
        return None
    return "l2", node, _tidy(e / c), _tidy(1 / c)


def _tidy(number: float) -> float:
    """1e-5 where taking it apart made 1.0000000000000001e-5."""
    short = float(f"{number:.12g}")
    return short if math.isclose(short, number, rel_tol=1e-12) else number


def _function(node: Node) -> tuple[Node, formula.Formula]:
    if isinstance(node, ElementNode) and node.tree is not None:
        return node.sources[0], formula.of(node.tree)
    return node, formula.parse("x")


def _are_squares(squares: Node, node: Node) -> bool:
    (base, square), (own, function) = _function(squares), _function(node)
    with np.errstate(all="ignore"):
        return base is own and bool(
            np.allclose(square(POINTS), function(POINTS) ** 2, rtol=_CLOSE, atol=0, equal_nan=True)
        )


def _centred_source(node: Node) -> Node | None:
    """x of x - mean(x)."""
    if isinstance(node, CombineNode) and node.op == "subtract":
        x, spread = node.sources
        if isinstance(spread, LinearNode) and spread.role == "broadcast":
            mean = spread.sources[0]
            if isinstance(mean, LinearNode) and mean.role == "mean" and mean.sources[0] is x:
                return x
    return None
