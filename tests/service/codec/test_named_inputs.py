# SPDX-License-Identifier: Apache-2.0
"""Requests with named inputs become records, over both APIs: as Input.pack, which is the reference, makes them. What is
wrong with a request is told in one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.inputs import (
    Add,
    Clip,
    Divide,
    Field,
    Input,
    InputError,
    Modulo,
    Multiply,
    Replace,
    record_of,
)
from fused_mlp.models.program.steps import Linear, Slice
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service._engine import Engine, Refused, RouteEntry, Router
from fused_mlp.service.catalog.versions.input_layout import layout_of
from fused_mlp.service.client.named_inputs import encode_named

POSITIONS = "positions" in Field.model_fields  # whether a field may read some of the values
WIRE = {
    "float32": "FP32",
    "float64": "FP64",
    "float16": "FP16",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "bool": "BOOL",
    "object": "BYTES",
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def model_of(inputs: tuple[Input, ...]) -> tuple[_engine.Route, _engine.InputLayout]:
    words = sum(each.words for each in inputs)
    floats = next((p for p in record_of(inputs) if p.field.size is None), None)
    assert floats is not None  # so that a program of today's steps reads it
    spec = MlpSpec(
        in_features=words,
        inputs=inputs,
        steps=(
            Slice(name="floats", input="input", start=floats.start, stop=floats.stop),
            Linear(name="out", input="floats", out_features=1),
        ),
    )
    layout = layout_of(spec)
    assert layout is not None
    assert layout.words == words
    engine, router = Engine(workers=1), Router()
    lane = engine.add_lane(kernel=lambda x, y: "puppet", in_features=words, out_features=1)
    entry = RouteEntry(
        model="m",
        version=1,
        fused=lane,
        in_features=words,
        out_features=1,
        layout=layout,
        max_request_rows=4096,
    )
    router.publish([entry])
    engine.stop()
    return router.resolve("m"), layout


def raw(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    words = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1)]
    return b"".join(struct.pack("<I", len(word)) + word for word in words)


def predict(given: dict[str, Any]) -> _engine.PredictInput:
    message = fm.PredictRequest(model="m", inputs=encode_named(given))
    return _engine.PREDICT_CODEC.decode(message.SerializeToString())


def infer_raw(given: dict[str, Any]) -> _engine.PredictInput:
    request = oip.ModelInferRequest(model_name="m")
    for name, array in given.items():
        request.inputs.add(name=name, datatype=WIRE[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(raw(array))
    return _engine.INFER_CODEC.decode(request.SerializeToString())


def infer_typed(given: dict[str, Any]) -> _engine.PredictInput:
    request = oip.ModelInferRequest(model_name="m")
    for name, array in given.items():
        datatype = WIRE[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        values = array.reshape(-1).tolist()
        if datatype == "BYTES":
            values = [each.encode() if isinstance(each, str) else each for each in values]
        getattr(tensor.contents, CONTENTS[datatype]).extend(values)
        tensor.contents.SetInParent()
    return _engine.INFER_CODEC.decode(request.SerializeToString())


SENDERS: list[Callable[[dict[str, Any]], _engine.PredictInput]] = [predict, infer_raw, infer_typed]


def records(request: _engine.PredictInput, route: _engine.Route, rows: int) -> np.ndarray[Any, Any]:
    assert request.error == ""
    assert request.check_rows(route) == rows
    return np.frombuffer(request.data, np.int32).reshape(rows, -1)


def expected(inputs: tuple[Input, ...], given: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([each.pack(given[each.name]) for each in inputs], axis=1).view(np.int32)


def random_rule(rng: np.random.Generator, width: int) -> Any:
    small = int(rng.integers(1, 1000))
    match rng.integers(7):
        case 0:
            return Add(
                values=tuple(rng.integers(-(1 << 40), 1 << 40, width if rng.random() < 0.5 else 1).tolist())
            )
        case 1:
            return Divide(divisor=small)
        case 5:
            return Multiply(factor=int(rng.integers(-(1 << 62), 1 << 62)))
        case 2:
            return Modulo(divisor=small)
        case 3:
            return Modulo(divisor=small, truncated=True)
        case 4:
            return Clip(least=-small, most=int(rng.integers(-small, 1000)))
    return Replace(found=int(rng.integers(-2, 3)), by=small)


def picked_input(rng: np.random.Generator, name: str) -> Input:
    """Floats or whole numbers, some of which are ids: the columns of one table."""
    fields = []
    for _ in range(int(rng.integers(1, 4))):
        positions = tuple(rng.integers(0, 5, int(rng.integers(1, 4))).tolist())
        size = int(rng.integers(1, 50))
        ids: dict[str, Any] = {"kind": "id", "size": size, "rules": (Modulo(divisor=size),)}
        fields.append(Field(**(ids if rng.random() < 0.6 else {}), **{"positions": positions}))
    return Input(name=name, dtype=str(rng.choice(["float32", "int64"])), shape=(5,), fields=tuple(fields))


def random_input(rng: np.random.Generator, name: str) -> Input:
    shapes = [(), (1,), (3,), (2, 2), (300,)]
    shape = shapes[rng.integers(len(shapes))]
    ragged = len(shape) == 1 and rng.random() < 0.5
    kind = rng.choice(["float", "whole", "string", "known"])
    if POSITIONS and rng.random() < 0.3:
        return picked_input(rng, name)
    if kind == "float":
        dtype = str(rng.choice(["float32", "float64", "float16"]))
        return Input(name=name, dtype=dtype, shape=shape, ragged=ragged)
    width = int(np.prod(shape))
    fields = []
    for _ in range(int(rng.integers(1, 3))):
        rules = tuple(random_rule(rng, width) for _ in range(int(rng.integers(3))))
        size = int(rng.integers(1, 1000))
        fields.append(
            Field(kind="id", size=size, rules=(*rules, Modulo(divisor=size)))
            if rng.random() < 0.6
            else Field(rules=rules)
        )
    options: dict[str, Any] = {"name": name, "shape": shape, "ragged": ragged, "fields": tuple(fields)}
    if kind == "string":
        return Input(dtype="string", vocabulary=("a", "\0", "ä" * 40, "", "b\0"), unknown=7, **options)
    if kind == "known":
        return Input(dtype="int64", vocabulary=(5, -1, 1 << 62), unknown=3, **options)
    return Input(dtype=str(rng.choice(["int64", "int32", "bool"])), **options)


def random_values(rng: np.random.Generator, each: Input, rows: int) -> np.ndarray[Any, Any]:
    shape = each.shape
    if each.ragged and rng.random() < 0.5:
        shape = (int(rng.integers(0, each.width + 1)),)
    if each.shape == () and rng.random() < 0.3:
        shape = (1,)
    count = rows * int(np.prod(shape))
    if each.dtype == "string":
        words: list[Any] = ["a", "\0", "ä" * 40, "", "b\0", "b", "zz", b"\xff\xfe", "x" * 1000]
        values = np.empty(count, object)
        values[:] = [words[i] for i in rng.integers(len(words), size=count)]
        return values.reshape(rows, *shape)
    if each.dtype.startswith("float"):
        floats = rng.standard_normal((rows, *shape)).astype(
            str(rng.choice(["float32", "float64", "float16"]))
        )
        return floats if rng.random() < 0.7 else (100 * floats).astype(np.int64)
    dtype = str(rng.choice(["int64", "int32", "int8", "uint8", "uint16", "uint64", "bool"]))
    if dtype == "bool":
        return rng.random((rows, *shape)) < 0.5
    info = np.iinfo(dtype)
    most = min(info.max, np.iinfo("int64").max)  # larger ones are refused
    return rng.integers(info.min, most, (rows, *shape), dtype=dtype, endpoint=True)


@pytest.mark.parametrize("seed", range(60))
def test_records_are_those_of_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = (
        *(random_input(rng, f"i{i}") for i in range(int(rng.integers(1, 5)))),
        Input(name="x"),
    )
    route, _ = model_of(inputs)
    for send in SENDERS:
        rows = int(rng.choice([1, 2, 7, 300]))
        given = {each.name: random_values(rng, each, rows) for each in inputs}
        if send is not infer_raw:  # these have no narrower types than the protocol's fields
            given = {n: v.astype("f4") if v.dtype == "f2" else v for n, v in given.items()}
        if send is predict:
            given = {n: v.astype("i8") if v.dtype.name == "uint64" else v for n, v in given.items()}
        shuffled = dict(sorted(given.items(), key=lambda _: rng.random()))
        assert np.array_equal(records(send(shuffled), route, rows), expected(inputs, given)), send


ITEM = Input(name="item", dtype="int64", fields=(Field(kind="id", size=100),))
WORD = Input(name="word", dtype="string", vocabulary=("a", "b"), fields=(Field(kind="id", size=2),))
BAG = Input(name="bag", dtype="int64", shape=(3,), ragged=True, fields=(Field(kind="id", size=10),))
X = Input(name="x", shape=(2,))
GOOD = {
    "item": np.array([0, 99]),
    "word": np.array(["a", "b"], object),
    "bag": np.array([[1, 2, 3], [4, -1, 5]]),
    "x": np.zeros((2, 2), np.float32),
}


@pytest.mark.parametrize("send", [send for send in SENDERS if send is not predict])  # which has no UINT64
@pytest.mark.parametrize("name", ["item", "bag"])
def test_whole_numbers_beyond_63_bits_are_refused(
    send: Callable[[dict[str, Any]], _engine.PredictInput], name: str
) -> None:
    """As signed numbers they would be negative, and the largest would be -1, an absent id."""
    route, _ = model_of((ITEM, WORD, BAG, X))
    given = GOOD[name].astype("u8")
    given.reshape(-1)[1] = (1 << 64) - 1
    with pytest.raises(Refused) as refused:
        send(GOOD | {name: given}).check_rows(route)
    assert (
        str(refused.value) == f"input '{name}': expected whole numbers below 2^63, got 18446744073709551615"
    )


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"item": np.array([0, 100])}, "input 'item', row 1: expected an id from 0 to 99, got 100"),
        ({"item": np.array([-1, 0])}, "input 'item', row 0: expected an id from 0 to 99, got -1"),
        (
            {"item": np.array([0, 1 << 40])},
            "input 'item', row 1: expected an id from 0 to 99, got 1099511627776",
        ),
        (
            {"bag": np.array([[1, 2, 3], [4, 10, 5]])},
            "input 'bag', row 1, position 1: expected an id from 0 to 9, got 10",
        ),
        ({"word": np.array(["a", "c"], object)}, "input 'word', row 1: 'c' is not in its vocabulary of 2"),
        ({"word": np.array(["a", "a\0"], object)}, "input 'word', row 1: 'a?' is not in its vocabulary of 2"),
        (
            {"word": np.array([b"\xff", b"a"], object)},
            "input 'word', row 0: a text that is not UTF-8 is not in its vocabulary of 2",
        ),
        (
            {"word": np.array(["a", "z" * (1 << 20)], object)},
            f"input 'word', row 1: '{'z' * 64}...' is not in its vocabulary of 2",
        ),
        ({"word": None}, "inputs: expected 'item', 'word', 'bag', 'x', got no 'word'"),
        ({"who": np.zeros(2)}, "inputs: expected 'item', 'word', 'bag', 'x', got 'who'"),
        (
            {"x": np.zeros((3, 2), np.float32)},
            "inputs: expected the same number of rows in all, got 2 of 'item' and 3 of 'x'",
        ),
        ({"item": np.zeros(2, np.float32)}, "input 'item': expected whole numbers, got FP32"),
        ({"x": np.array(["a", "b"], object)}, "input 'x': expected numbers, got BYTES"),
        ({"word": np.array([1, 2])}, "input 'word': expected BYTES, got INT64"),
        ({"item": np.zeros((2, 2), np.int64)}, "input 'item': expected shape [rows], got [2, 2]"),
        ({"bag": np.zeros((2, 4), np.int64)}, "input 'bag': expected shape [rows, 3] or fewer, got [2, 4]"),
        (
            {name: np.concatenate([values] * 2500) for name, values in GOOD.items()},
            "input 'item': expected 1 to 4096 rows per request, got 5000",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    send: Callable[[dict[str, Any]], _engine.PredictInput], change: dict[str, Any], text: str
) -> None:
    route, layout = model_of((ITEM, WORD, BAG, X))
    given = {name: values for name, values in (GOOD | change).items() if values is not None}
    request = send(given)
    assert request.error == ""
    with pytest.raises(Refused) as refused:
        request.check_rows(route)
    assert str(refused.value) == text
    assert sum(count for _, count in layout.refused()) == int("an id from" in text or "vocabulary" in text)


def test_the_reference_refuses_the_same_ids() -> None:
    with pytest.raises(InputError, match="input 'item', row 1: expected an id from 0 to 99, got 100"):
        ITEM.pack(np.array([0, 100]))


def test_an_input_that_comes_twice_is_refused() -> None:
    route, _ = model_of((ITEM, X))
    tensors = encode_named({"item": [1], "x": [[0.0, 1.0]]})
    request = _engine.PREDICT_CODEC.decode(
        fm.PredictRequest(inputs=[*tensors, tensors[0]]).SerializeToString()
    )
    with pytest.raises(Refused, match="inputs: expected 'item' once, got it twice"):
        request.check_rows(route)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    route, _ = model_of((WORD, X))

    def send(words: bytes, floats: bytes = bytes(8)) -> str:
        request = oip.ModelInferRequest(raw_input_contents=[words, floats])
        request.inputs.add(name="word", datatype="BYTES", shape=[1])
        request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
        decoded = _engine.INFER_CODEC.decode(request.SerializeToString())
        assert decoded.error == ""
        with pytest.raises(Refused) as refused:
            decoded.check_rows(route)
        return str(refused.value)

    unreadable = (
        "input 'word': expected BYTES, got bytes that cannot be read as such: their lengths do not add up"
    )
    assert send(b"\x05\0\0\0a") == unreadable
    assert send(b"\xff\xff\xff\xffa") == unreadable
    assert send(b"\x01\0\0") == unreadable
    assert send(b"") == "input 'word': expected 1 values for [1], got 0"
    assert send(b"\x01\0\0\0a" * 2) == "input 'word': expected 1 values for [1], got more"
    assert send(b"\x01\0\0\0a", bytes(7)) == "input 'x': expected 8 bytes for [1, 2] FP32, got 7"


def test_a_request_may_have_too_few_tensors_or_too_many() -> None:
    def problem(request: oip.ModelInferRequest) -> str:
        return _engine.INFER_CODEC.decode(request.SerializeToString()).error

    assert problem(oip.ModelInferRequest()) == "inputs: expected tensors by name, got none"
    tensor = oip.ModelInferRequest.InferInputTensor
    many = oip.ModelInferRequest(inputs=[tensor(name=f"{i}") for i in range(1025)])
    assert problem(many) == "inputs: expected at most 1024, got more"
    few = oip.ModelInferRequest(inputs=[tensor(name="a"), tensor(name="b")], raw_input_contents=[b""])
    assert problem(few) == "raw_input_contents: expected 2 for 2 inputs, got 1"
    both = fm.PredictRequest(input=fm.Tensor(values=[1]), inputs=[fm.NamedTensor(name="a")])
    assert (
        _engine.PREDICT_CODEC.decode(both.SerializeToString()).error
        == "inputs: expected input or inputs, got both"
    )


def test_people_may_type_integers_and_strings() -> None:
    route, _ = model_of((ITEM, WORD, X))
    request = fm.PredictRequest(
        inputs=[
            fm.NamedTensor(name="x", tensor=fm.Tensor(values=[1.5, 2.5])),
            fm.NamedTensor(name="word", tensor=fm.Tensor(strings=["b"])),
            fm.NamedTensor(name="item", tensor=fm.Tensor(integers=[7])),
        ]
    )
    found = records(_engine.PREDICT_CODEC.decode(request.SerializeToString()), route, 1)
    assert found[0, :2].tolist() == [7, 1]
    assert found[0, 2:].view(np.float32).tolist() == [1.5, 2.5]


def test_the_only_input_needs_no_name() -> None:
    route, _ = model_of((Input(name="features", dtype="int64", shape=(2,)),))
    request = fm.PredictRequest(input=fm.Tensor(shape=[1, 2], values=[1, 2]))
    with pytest.raises(Refused, match="input 'features': expected whole numbers, got FP32"):
        _engine.PREDICT_CODEC.decode(request.SerializeToString()).check_rows(route)
    route, _ = model_of((Input(name="features", shape=(2,)),))
    found = records(_engine.PREDICT_CODEC.decode(request.SerializeToString()), route, 1)
    assert found.view(np.float32).tolist() == [[1.0, 2.0]]


def test_a_model_of_one_float_input_refuses_named_ones() -> None:
    engine, router = Engine(workers=1), Router()
    lane = engine.add_lane(kernel=lambda x, y: "puppet", in_features=2, out_features=1)
    router.publish([RouteEntry(model="m", version=1, fused=lane, in_features=2, out_features=1)])
    engine.stop()
    for given, text in (
        ({"a": np.zeros((1, 2), np.float32)}, "inputs: expected one tensor named 'input', got 'a'"),
        ({"input": np.zeros((1, 2), np.int64)}, "dtype: expected FP32, FP16, BF16 or FP64, got 'INT64'"),
    ):
        with pytest.raises(Refused, match=text):
            infer_raw(given).check_rows(router.resolve("m"))
