# SPDX-License-Identifier: Apache-2.0
"""Named inputs become records: what is accepted, what is refused in one line, and where each word is."""

import numpy as np
import pytest

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.arithmetic import ids_of
from fused_mlp.models.program.inputs import (
    Add,
    Clip,
    Divide,
    Field,
    Input,
    InputError,
    Modulo,
    Replace,
    spread_ids,
)
from fused_mlp.models.program.steps import Embedding, Linear, Slice


def ids(name="item", size=100, rules=(), **options):
    return Input(name=name, dtype="int64", fields=(Field(kind="id", size=size, rules=rules),), **options)


@pytest.mark.parametrize(
    ("rules", "given", "expected"),
    [
        ((), [0, 99], [0, 99]),
        ((Modulo(divisor=100),), [-1, 1 << 40], [99, (1 << 40) % 100]),
        ((Modulo(divisor=100, truncated=True), Clip(least=0, most=50)), [-7, 199], [0, 50]),
        ((Divide(divisor=10),), [-1 + 10, 999], [0, 99]),
        ((Replace(found=-1, by=7),), [-1, 3], [7, 3]),
        ((Add(values=(5,)),), [-5, 94], [0, 99]),
    ],
)
def test_rules_are_applied_in_64_bits_before_ids_are_checked(rules, given, expected):
    assert ids_of(ids(rules=rules).pack(np.array(given, np.int64)))[:, 0].tolist() == expected


@pytest.mark.parametrize("given", [-1, 100, 1 << 40, -(1 << 63)])
def test_an_id_outside_its_table_is_refused_with_its_row_and_the_range(given):
    with pytest.raises(InputError, match=rf"input 'item', row 1: expected an id from 0 to 99, got {given}$"):
        ids().pack(np.array([0, given], np.int64))


def test_one_input_may_be_read_twice():
    both = Input(
        name="time",
        dtype="int64",
        shape=(2,),
        fields=(
            Field(kind="id", size=7, rules=(Modulo(divisor=7),)),
            Field(rules=(Add(values=(-1_700_000_000,)),)),
        ),
    )
    record = both.pack(np.array([[1_700_000_003, 1_700_000_004]]))
    assert ids_of(record[:, :2]).tolist() == [[1_700_000_003 % 7, 1_700_000_004 % 7]]
    assert record[:, 2:].tolist() == [[3.0, 4.0]]  # exact: float32 would have rounded the times first


def test_shorter_rows_of_a_ragged_input_are_filled_with_absent_ids():
    assert ids_of(ids(shape=(4,), ragged=True).pack([[3, 5]])).tolist() == [[3, 5, -1, -1]]
    assert ids_of(ids(shape=(4,), ragged=True).pack([[3, -1, 5, -1]])).tolist() == [[3, -1, 5, -1]]


def test_strings_stand_for_their_places_in_the_vocabulary():
    known = {"dtype": "string", "vocabulary": ("de", "fr", "\0"), "fields": (Field(kind="id", size=4),)}
    country = Input(name="country", unknown=3, **known)
    assert ids_of(country.pack(["fr", b"de", "\0", "xx"]))[:, 0].tolist() == [1, 0, 2, 3]
    with pytest.raises(InputError, match="input 'country': 'xx' is not in its vocabulary of 3"):
        Input(name="country", **known).pack(["xx"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.zeros(3), "expected whole numbers, got float64"),
        (np.zeros((2, 2), np.int64), r"expected shape \(rows\), got \(2, 2\)"),
        (["a"], "expected whole numbers"),
    ],
)
def test_values_of_another_dtype_or_shape_are_refused(given, text):
    with pytest.raises(InputError, match=f"input 'item': {text}"):
        ids().pack(given)


def program(**options):
    given = {
        "in_features": 3,
        "inputs": (ids(), Input(name="x", shape=(2,))),
        "steps": (
            Slice(name="item_id", input="input", start=0, stop=1),
            Embedding(name="item", input="item_id", size=100, features=4),
            Linear(name="out", input="item", out_features=1),
        ),
    }
    return MlpSpec(**{**given, **options})


def test_the_record_has_every_input_in_order():
    places = [(part.input.name, part.start, part.stop) for part in program().record]
    assert places == [("item", 0, 1), ("x", 1, 3)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"in_features": 4}, "the inputs have 3 words, got 4"),
        ({"inputs": (ids("a"), Input(name="a", shape=(2,)))}, "two inputs have the same name"),
        (
            {"steps": (Linear(name="out", input="input", out_features=1),)},
            "it reads floats and ids at once; slice the input first",
        ),
        (
            {
                "steps": (
                    Slice(name="floats", input="input", start=1, stop=2),
                    Embedding(name="out", input="floats", size=100, features=4),
                )
            },
            "expected ids in 'floats', got floats",
        ),
    ],
)
def test_a_program_that_does_not_fit_its_inputs_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        program(**options)


def test_spread_ids_reach_both_ends_of_every_table_and_leave_floats_alone():
    record = np.full((50, 3), 0.5, np.float32)
    spread_ids(program().record, record)
    found = ids_of(record[:, :1])
    assert (found.min(), found.max()) == (0, 99)
    assert (record[:, 1:] == 0.5).all()


def test_a_field_may_read_some_positions_with_a_table_of_their_own():
    both = Input(
        name="cat",
        dtype="int32",
        shape=(3,),
        fields=(
            Field(kind="id", size=5, positions=(0, 2), rules=(Add(values=(0, 1)),)),
            Field(kind="id", size=100, positions=(1,)),
        ),
    )
    assert both.words == 3
    assert ids_of(both.pack(np.array([[4, 99, 3]]))).tolist() == [[4, 4, 99]]
    with pytest.raises(InputError, match="row 0, position 2: expected an id from 0 to 4, got 5"):
        both.pack(np.array([[4, 99, 4]]))


def test_ids_may_come_as_floats_which_are_cut_off_at_the_point():
    mixed = Input(
        name="x", shape=(3,), fields=(Field(kind="id", size=10, positions=(0,)), Field(positions=(1, 2)))
    )
    record = mixed.pack(np.array([[3.9, 0.5, -1.0]], np.float32))
    assert ids_of(record[:, :1]).tolist() == [[3]]
    assert record[:, 1:].tolist() == [[0.5, -1.0]]
    for wrong in (10.0, -1.0, np.nan, np.inf, 1e30):
        with pytest.raises(InputError, match="input 'x', row 0, position 0: expected an id from 0 to 9"):
            mixed.pack(np.array([[wrong, 0, 0]], np.float32))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fields": (Field(positions=(3,)),)}, "there is no position 3 of 3"),
        ({"fields": (Field(positions=(0,)),), "ragged": True}, "a ragged row has no fixed positions"),
        ({"vocabulary": (1, 2)}, "vocabularies are for whole numbers, not float32"),
    ],
)
def test_fields_that_do_not_fit_their_input_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Input(name="x", shape=(3,), **options)
