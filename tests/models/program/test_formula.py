# SPDX-License-Identifier: Apache-2.0
"""Formulas: one spelling for each function, nothing but functions of one value, and the numbers of PyTorch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fused_mlp.models.program import formula
from fused_mlp.models.program.formula import (
    BINARY,
    MAX_INSTRUCTIONS,
    MAX_TEXT,
    PARAMETERS,
    SUGAR,
    FormulaError,
    binary,
    call,
    constant,
    of,
    parse,
    x,
)

SPECIAL = [0.0, -0.0, 1e-300, -1e-300, 1e-8, 20.0, 20.5, -25.0, 88.0, -104.0, 700.0, -800.0, 3e6, -3e6, 1e200]
POINTS = np.concatenate([np.linspace(-12, 12, 4001), SPECIAL, [math.inf, -math.inf, math.nan]])


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("relu", "relu"),
        ("relu(x)", "relu"),
        (" relu ( x ) ", "relu"),
        ("identity", "x"),
        ("leaky_relu(x, 0.01)", "leaky_relu"),
        ("leaky_relu(x, 0.2)", "leaky_relu(x, 0.2)"),
        ("leaky_relu(x, -1)", "leaky_relu(x, -1)"),
        ("clip(x, 0, 6)", "relu6"),
        ("hardtanh", "clip(x, -1, 1)"),
        ("hardtanh(x, -2, 2)", "clip(x, -2, 2)"),
        ("x * sigmoid(1.702 * x)", "quick_gelu"),
        ("x*x", "square"),
        ("celu(x, 2)", "2 * elu(x / 2)"),
        ("-x", "x * (-1)"),
        ("-(2 + 3) * x", "(-5) * x"),
        ("x - (x - 1)", "x - (x - 1)"),
        ("(x - x) - 1", "x - x - 1"),
        ("x / (2 * x)", "x / (2 * x)"),
        ("relu(square(x))", "relu(x * x)"),
        ("exp(2) * x", f"{math.exp(2)!r} * x"),
        ("x + 1e20", "x + 1e+20"),
        ("x * -0.0", "x * 0"),
        ("maximum(x, 0.1 * x)", "maximum(x, 0.1 * x)"),
    ],
)
def test_every_function_has_one_spelling(text, canonical):
    assert parse(text).text == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    "text", ["celu(x, a)", "hardtanh(x, 1, 2, 3)", "clip(x)", "clip", "relu(x, 1)", "relu()"]
)
def test_wrong_arguments_are_refused(text):
    with pytest.raises(FormulaError, match="expected"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a formula such as"),
        ("x +", "expected a formula such as"),
        ("(" * 300 + "x" + ")" * 300, "expected a formula such as"),
        ("x" * (MAX_TEXT + 1), f"{MAX_TEXT + 1} characters"),
        ("swirl", "there is no function 'swirl'"),
        ("y", "there is no function 'y'"),
        ("y + 1", "expected x, numbers"),
        ("x.real", "expected x, numbers"),
        ("x if x else x", "expected x, numbers"),
        ("[x for x in x]", "expected x, numbers"),
        ("x ** 2", "expected x, numbers"),
        ("x @ x", "expected x, numbers"),
        ("'x'", "expected x, numbers"),
        ("True * x", "expected x, numbers"),
        ("1j * x", "expected x, numbers"),
        ("relu(x=1)", "expected x, numbers"),
        ("relu(*x)", "expected x, numbers"),
        ("__import__('os')", "expected x, numbers"),
        ("exp.__class__(x)", "expected x, numbers"),
        ("3", "does not depend on x"),
        ("relu(2) + 1", "does not depend on x"),
        ("x * 1e999", "expected finite numbers"),
        ("x / 0 + 1 / 0", "expected finite numbers"),
        ("clip(x, 0, 1e999)", "expected finite numbers"),
        ("x * 1" + "0" * 400, "expected finite numbers"),
        ("clip(x, x, 1)", "expected at most 2 numbers"),
        ("maximum(x)", "expected two arguments"),
        ("+".join(["x"] * 300), "operations"),
        ("exp(" * 90 + "x" + ")" * 90, "operations"),
        (" + ".join(f"exp({n} * x)" for n in range(40)), "operations"),
    ],
)  # fmt: skip
def test_what_is_no_function_of_one_value_is_refused_in_words(text, said):
    with pytest.raises(FormulaError, match=said) as error:
        parse(text)
    assert len(str(error.value)) < 600


@given(st.one_of(st.text(max_size=60), st.text("x0123456789.e+-*/(), relugxp", max_size=60)))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_formula_or_a_formula_error(text):
    try:
        made = parse(text)
    except FormulaError:
        return
    assert parse(made.text) == made


NUMBERS = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def trees():
    def grow(inner):
        unary = [name for name, numbers in PARAMETERS.items() if not numbers]
        return st.one_of(
            st.builds(call, st.sampled_from(unary), inner),
            st.builds(call, st.sampled_from(["leaky_relu", "elu", "celu"]), inner, st.floats(0.1, 3)),
            st.builds(lambda value, low: call("clip", value, low, low + 1), inner, NUMBERS),
            st.builds(binary, st.sampled_from(BINARY), inner, st.one_of(inner, NUMBERS.map(constant))),
            st.builds(binary, st.sampled_from(BINARY), NUMBERS.map(constant), inner),
        )

    return st.recursive(st.just(x()), grow, max_leaves=12)


def same(left, right):
    return np.array_equal(left, right, equal_nan=True)


@given(trees())
@settings(max_examples=300, deadline=None)
def test_the_text_of_a_formula_is_the_formula(tree):
    made = of(tree)
    again = parse(made.text)
    assert again == made
    assert again.instructions == made.instructions
    assert len(made.instructions) <= MAX_INSTRUCTIONS


@given(trees(), trees())
@settings(max_examples=200, deadline=None)
def test_then_is_one_function_after_the_other(first, second):
    before, after = of(first), of(second)
    try:
        both = before.then(after)
    except FormulaError as error:
        assert "operations" in str(error) or "characters" in str(error)
        return
    # Constants that meet are folded in float64, in which the values are too.
    assert same(both(POINTS), after(before(POINTS)))


def test_zero_has_no_sign():
    """Its text has none, and equal constants are one register."""
    made = parse("x / -0.0")
    assert made.text == "x / 0"
    assert same(made(POINTS), parse("x / 0")(POINTS))


def test_the_identity_changes_nothing():
    relu, nothing = parse("relu"), parse("x")
    assert nothing.is_identity
    assert nothing.instructions == ()
    assert relu.then(nothing) == nothing.then(relu) == relu
    assert same(nothing(POINTS), POINTS)


def test_a_part_that_occurs_twice_is_computed_once():
    made = parse("sin(3 * x) * sin(3 * x) + 3 * x")
    assert [each.op for each in made.instructions] == ["multiply", "sin", "multiply", "add"]
    assert made.constants == (3.0,)


def test_trees_that_share_their_parts_do_not_spell_endless_texts():
    tree = x()
    with pytest.raises(FormulaError, match="written out"):
        for _ in range(40):
            tree = binary("multiply", tree, tree)


def test_deep_trees_are_refused_before_python_runs_out_of_stack():
    tree = x()
    with pytest.raises(FormulaError, match="inside each other"):
        for _ in range(5000):
            tree = call("sin", tree)


def test_plain_names_need_no_parser(monkeypatch):
    parse.cache_clear()

    def fail(*_args, **_more):
        raise AssertionError("parsed")

    monkeypatch.setattr(formula.ast, "parse", fail)
    for name in ("x", "identity", "relu", "gelu", "leaky_relu", "elu", "softplus", "tanh"):
        assert parse(name).text == ("x" if name == "identity" else name)
    parse.cache_clear()


# What PyTorch computes for each name.
TORCH = {
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "leaky_relu(x, 0.3)": lambda t: functional.leaky_relu(t, 0.3),
    "leaky_relu(x, -0.5)": lambda t: functional.leaky_relu(t, -0.5),
    "gelu": functional.gelu,
    "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": functional.elu,
    "elu(x, 0.5)": lambda t: functional.elu(t, 0.5),
    "softplus": functional.softplus,
    "softplus(x, 2, 5)": lambda t: functional.softplus(t, 2, 5),
    "hardswish": functional.hardswish,
    "mish": functional.mish,
    "clip(x, -1, 2)": lambda t: t.clamp(-1, 2),
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "relu6": functional.relu6,
    "selu": functional.selu,
    "celu": functional.celu,
    "celu(x, 1.5)": lambda t: functional.celu(t, 1.5),
    "hardtanh": functional.hardtanh,
    "hardtanh(x, -2, 3)": lambda t: functional.hardtanh(t, -2, 3),
    "hardsigmoid": functional.hardsigmoid,
    "softsign": functional.softsign,
    "quick_gelu": lambda t: t * torch.sigmoid(1.702 * t),
    "sign": torch.sign,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "exp2": torch.exp2,
    "log2": torch.log2,
    "log10": torch.log10,
    "rsqrt": torch.rsqrt,
    "erfc": torch.erfc,
    "log_sigmoid": functional.logsigmoid,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "maximum(x, 0.5)": lambda t: t.clamp(min=0.5),
    "minimum(x, 0.5)": lambda t: t.clamp(max=0.5),
    "2 - x": lambda t: 2 - t,
    "x / 3 + 1": lambda t: t / 3 + 1,
}
# PyTorch's formulas multiply 0 by infinity there, or do not, from version to version.
UNDEFINED_AT_INFINITY = {"silu", "gelu", "gelu_tanh", "mish", "hardswish", "quick_gelu", "softsign"}


def test_every_function_is_compared_with_torch():
    assert {text.partition("(")[0] for text in TORCH} >= (set(PARAMETERS) | set(SUGAR)) - {"identity"}


@pytest.mark.parametrize("text", TORCH)
def test_functions_are_torchs_in_float64(text):
    points = POINTS
    if text in UNDEFINED_AT_INFINITY:
        points = POINTS[~np.isinf(POINTS)]
    expected = TORCH[text](torch.from_numpy(points)).numpy()
    # Both are float64 formulas of one function: a few roundings of the largest number on the way.
    np.testing.assert_allclose(parse(text)(points), expected, rtol=1e-14, atol=4e-15)


@pytest.mark.parametrize("text", TORCH)
def test_float32_stays_float32(text):
    points = np.linspace(-9, 9, 600, dtype=np.float32).reshape(3, 50, 4)
    got = parse(text)(points)
    assert got.dtype == np.float32
    assert got.shape == points.shape
    with np.errstate(all="ignore"):
        expected = parse(text)(points.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


def test_any_number_of_values():
    sine = parse("sin")
    assert sine(np.empty((0, 4))).shape == (0, 4)
    many = np.linspace(-3, 3, 40_000).reshape(100, 400)  # more than one block
    assert np.array_equal(sine(many), np.sin(many))
    assert np.array_equal(sine(many.T), np.sin(many.T))
