# SPDX-License-Identifier: Apache-2.0
"""One user, many candidates: shared inputs and the best scores over a real socket, on both fronts and all APIs. Answers
are those of repeated rows, to the bit."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client, PredictError
from tests.support.fronts import both_fronts
from tests.support.random_programs import random_weights
from tests.support.rankers import ranker, rows
from tests.support.rest import rest_port
from tests.support.server import Server

SHARED = ("user", "country", "time", "x", "history")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("candidates")
    models.save(ranker(), folder / "ranker" / "1")
    spec = models.MlpSpec(
        in_features=16, steps=(models.program.steps.Linear(name="scores", input="input", out_features=3000),)
    )
    models.save(random_weights(spec), folder / "towers" / "1")
    return folder


@pytest.fixture(scope="module")
def served(front: str, root: Path) -> Iterator[Server]:
    rest = {"rest_port": 0} if front == "native" else {}
    with Server(front=front, model_repository=root, allow_override=True, **rest) as running:
        yield running


@pytest.fixture(scope="module")
def caller(served: Server) -> Iterator[Client]:
    with Client(served.target) as connected:
        yield connected


def candidates(
    count: int, *names: str, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What each row has, what all have in common, and the same as rows."""
    given = rows(count, seed=seed)
    shared = {name: given[name][:1] for name in names or SHARED}
    own = {name: values for name, values in given.items() if name not in shared}
    repeated = {
        name: (values * count if isinstance(values, list) else np.repeat(values, count, axis=0))
        for name, values in shared.items()
    }
    return own, shared, own | repeated


@both_fronts
@pytest.mark.parametrize("variant", ["fused", "unfused"])
@pytest.mark.parametrize("names", [SHARED, ("user",), ("item", "x"), ("time", "history")])
@pytest.mark.parametrize("count", [1, 50, 3000])
def test_shared_inputs_answer_what_repeating_them_does(
    caller: Client, variant: Any, names: tuple[str, ...], count: int
) -> None:
    own, shared, repeated = candidates(count, *names)
    answer = caller.predict("ranker", own, shared=shared, variant=variant)
    np.testing.assert_array_equal(answer.output, caller.predict("ranker", repeated, variant=variant).output)
    assert answer.output.shape == (count,)


@both_fronts
@pytest.mark.parametrize("top_k", [1, 10, 500, 9000])
def test_the_best_rows_come_first(caller: Client, top_k: int) -> None:
    own, shared, repeated = candidates(500)
    scores = caller.predict("ranker", repeated).output
    answer = caller.predict("ranker", own, shared=shared, top_k=top_k, ids="item")
    best = np.argsort(-scores, kind="stable")[:top_k]
    np.testing.assert_array_equal(answer.positions, best)
    np.testing.assert_array_equal(answer.output, scores[best])
    np.testing.assert_array_equal(answer.ids, own["item"][best, 0])


@both_fronts
def test_a_least_score(caller: Client) -> None:
    own, shared, repeated = candidates(400)
    scores = caller.predict("ranker", repeated).output
    least = float(np.float32(np.median(scores)))
    answer = caller.predict("ranker", own, shared=shared, min_score=least)
    assert answer.positions is not None
    assert len(answer.positions) == int((scores >= least).sum())
    assert (answer.output >= least).all()
    few = caller.predict("ranker", own, shared=shared, min_score=least, top_k=3)
    np.testing.assert_array_equal(few.positions, answer.positions[:3])
    none = caller.predict("ranker", own, shared=shared, min_score=1e9)
    assert none.output.shape == (0,)
    assert none.positions is not None
    assert none.positions.shape == (0,)


@both_fronts
def test_nan_comes_last(caller: Client) -> None:
    given = rows(20)
    given["x"][[3, 11]] = np.nan
    answer = caller.predict("ranker", given, top_k=20)
    assert answer.positions is not None
    assert answer.positions[-2:].tolist() == [3, 11]
    bounded = caller.predict("ranker", given, min_score=-1e30)
    assert len(bounded.output) == 18


@both_fronts
def test_a_wide_output_ranks_its_columns(caller: Client) -> None:
    x = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    scores = caller.predict("towers", x).output
    answer = caller.predict("towers", x, top_k=5)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(answer.positions, best)
    np.testing.assert_array_equal(answer.output, np.take_along_axis(scores, best, axis=1))
    one = caller.predict("towers", x[0], top_k=5)
    np.testing.assert_array_equal(one.positions, best[0])
    half = caller.predict("towers", x.astype(np.float16), top_k=7)
    assert half.output.dtype == np.float16
    wide = caller.predict("towers", x.astype(np.float16)).output
    np.testing.assert_array_equal(half.positions, np.argsort(-wide, axis=1, kind="stable")[:, :7])


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"shared": {"user": [1, 2], **{name: rows(1)[name] for name in SHARED[1:]}}, "top_k": 1},
        "input 'user'",
    ),
    ({"shared": {"person": 1}}, "inputs: expected 'user', 'item', .*, got 'person'"),
    ({"top_k": 0}, "top_k: expected at least 1, got 0"),
    ({"min_score": float("nan")}, "min_score: expected a number, got NaN"),
    ({"ids": "item"}, "ids: expected top_k or min_score beside it"),
    ({"ids": "x", "top_k": 1}, "ids: expected the name of an input with one id for each row, got 'x'"),
    ({"ids": "user", "top_k": 1}, "ids: expected the name of an input with one id for each row, got 'user'"),
]


@both_fronts
@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_what_is_wrong_is_told_in_one_line(caller: Client, wrong: dict[str, Any], text: str) -> None:
    own, shared, _ = candidates(5)
    with pytest.raises(PredictError, match=text) as refused:
        caller.predict("ranker", own, **{"shared": shared, **wrong})
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


@both_fronts
def test_both_numbers_of_rows_are_told(caller: Client) -> None:
    own, shared, _ = candidates(5)
    with pytest.raises(PredictError, match="5 of 'item' and 1 of 'user'; name inputs of one row in shared"):
        caller.predict("ranker", own | shared)
    many = {**shared, "user": np.array([[1], [2]])}
    with pytest.raises(
        PredictError, match="input 'user': expected 1 row of a shared input, got 2 beside 5 of 'item'"
    ):
        caller.predict("ranker", own, shared=many)


def tensors_of(given: dict[str, Any]) -> Iterator[tuple[str, str, list[int], bytes, list[Any]]]:
    types = {"country": "BYTES", "x": "FP32"}
    for name, values in given.items():
        array = np.asarray(values, object) if name == "country" else np.asarray(values)
        if name not in types:
            array = array.astype(np.int64)
        raw = (
            b"".join(len(word).to_bytes(4, "little") + word.encode() for word in values)
            if name == "country"
            else array.tobytes()
        )
        yield name, types.get(name, "INT64"), list(array.shape), raw, array.tolist()


@both_fronts
@pytest.mark.parametrize("named", ["user,country,time,x,history", True])
def test_open_inference_over_grpc(served: Server, caller: Client, named: str | bool) -> None:
    own, shared, repeated = candidates(40)
    scores = caller.predict("ranker", repeated).output
    request = oip.ModelInferRequest(model_name="ranker")
    for name, datatype, shape, raw, _ in tensors_of(own | shared):
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    if isinstance(named, str):
        request.parameters["shared"].string_param = named
    else:
        request.parameters["shared"].bool_param = named
    with grpc.insecure_channel(served.target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        plain = stub.ModelInfer(request)
        request.parameters["top_k"].int64_param = 4
        request.parameters["min_score"].double_param = -100.0
        request.parameters["ids"].string_param = "item"
        request.parameters["output"].string_param = "score"
        answer = stub.ModelInfer(request)
    np.testing.assert_array_equal(np.frombuffer(plain.raw_output_contents[0], np.float32), scores)
    best = np.argsort(-scores, kind="stable")[:4]
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("score", "FP32", [4, 1]),
        ("positions", "INT64", [4]),
        ("ids", "INT64", [4]),
    ]
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), scores[best])
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[1], np.int64), best)
    np.testing.assert_array_equal(
        np.frombuffer(answer.raw_output_contents[2], np.int64), own["item"][best, 0]
    )


@both_fronts
def test_a_stock_triton_client(served: Server, caller: Client) -> None:
    tritonclient = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    own, shared, repeated = candidates(30)
    scores = caller.predict("ranker", repeated).output
    inputs = []
    for name, datatype, shape, _, values in tensors_of(own | shared):
        tensor = tritonclient.InferInput(name, shape, datatype)
        kinds = {"INT64": np.int64, "FP32": np.float32, "BYTES": np.object_}
        tensor.set_data_from_numpy(np.array(values, kinds[datatype]))
        inputs.append(tensor)
    client = tritonclient.InferenceServerClient(served.target)
    answer = client.infer("ranker", inputs, parameters={"shared": "user,country,time,x,history", "top_k": 3})
    best = np.argsort(-scores, kind="stable")[:3]
    np.testing.assert_array_equal(answer.as_numpy("score")[:, 0], scores[best])
    np.testing.assert_array_equal(answer.as_numpy("positions"), best)
    client.close()


@pytest.mark.parametrize("front", ["native"], indirect=True)
@pytest.mark.parametrize("binary", [False, True])
def test_rest_with_curl(served: Server, caller: Client, binary: bool) -> None:
    curl = shutil.which("curl")
    assert curl, "curl is not installed"
    own, shared, repeated = candidates(30)
    scores = caller.predict("ranker", repeated).output
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "data": values}
        for name, datatype, shape, _, values in tensors_of(own | shared)
    ]
    parameters = {"shared": list(SHARED), "top_k": 3, "ids": "item", "min_score": -1e3}
    if binary:
        parameters["binary_data_output"] = True
    url = f"http://127.0.0.1:{rest_port(served)}/v2/models/ranker/infer"
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    done = subprocess.run([curl, "-sS", url, "-d", body], capture_output=True, check=True, timeout=60)
    best = np.argsort(-scores, kind="stable")[:3]
    if binary:
        tail = done.stdout[-(12 + 24 + 24) :]
        np.testing.assert_array_equal(np.frombuffer(tail[:12], np.float32), scores[best])
        np.testing.assert_array_equal(np.frombuffer(tail[12:36], np.int64), best)
        return
    found = {each["name"]: each["data"] for each in json.loads(done.stdout)["outputs"]}
    np.testing.assert_array_equal(np.array(found["score"], np.float32), scores[best])
    assert found["positions"] == best.tolist()
    assert found["ids"] == own["item"][best, 0].tolist()


@both_fronts
def test_requests_share_batches_and_some_are_given_up(served: Server, caller: Client) -> None:
    """Different users, sets of shared inputs and numbers of rows at once; cancelled and expired ones among them."""
    sets = [SHARED, ("user",), ("item", "x"), ()]
    asked = []
    for seed in range(120):
        own, shared, repeated = candidates(1 + seed * 7 % 90, *sets[seed % 4], seed=seed)
        if seed % 4 == 3:
            own, shared = repeated, {}
        asked.append((own, shared, caller.predict("ranker", repeated).output))

    async def ask() -> list[Any]:
        async with AsyncClient(served.target) as client:
            calls = [
                asyncio.ensure_future(
                    client.predict("ranker", own, shared=shared, timeout_s=1e-4 if number % 11 == 5 else 30)
                )
                for number, (own, shared, _) in enumerate(asked)
            ]
            await asyncio.sleep(0)
            for call in calls[7::13]:
                call.cancel()
            return await asyncio.gather(*calls, return_exceptions=True)

    answered = 0
    for number, (answer, (_, _, expected)) in enumerate(zip(asyncio.run(ask()), asked, strict=True)):
        if isinstance(answer, BaseException):
            assert number % 11 == 5 or number % 13 == 7, answer
            continue
        np.testing.assert_array_equal(answer.output, expected)
        answered += 1
    assert answered >= 80
