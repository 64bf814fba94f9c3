# SPDX-License-Identifier: Apache-2.0
"""A ranker with named inputs over a real socket: both APIs, REST and the command line. Answers are
those of the float64 reference; nothing that is wrong is queued."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fused_mlp import models
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client, PredictError
from tests.support.fronts import both_fronts
from tests.support.rankers import EXAMPLE, ranker, rows
from tests.support.rest import RestClient, rest_port
from tests.support.server import Server

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rankers")
    models.save(ranker(), folder / "ranker" / "1")
    return folder


@pytest.fixture(scope="module")
def served(front: str, root: Path) -> Iterator[Server]:
    rest = {"rest_port": 0} if front == "native" else {}
    with Server(front=front, model_repository=root, **rest) as running:
        yield running


@pytest.fixture(scope="module")
def caller(served: Server) -> Iterator[Client]:
    with Client(served.target) as connected:
        yield connected


def expected(given: dict[str, Any]) -> np.ndarray:
    mlp = ranker()
    return evaluate(mlp, mlp.spec.pack(given).astype(np.float64))[:, 0].astype(np.float32)


def of_rows(given: dict[str, Any]) -> list[dict[str, Any]]:
    count = len(given["user"])
    return [
        {name: np.asarray(values)[row].tolist() for name, values in given.items()} for row in range(count)
    ]


class Frame:
    """As little of a data frame as the client needs."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        class Column:
            def __init__(self, values: Any) -> None:
                self._values = values

            def to_numpy(self) -> np.ndarray:
                return np.array(self._values, object) if isinstance(self._values, list) else self._values

        return Column(self._columns[name])


def framed(given: dict[str, Any]) -> Frame:
    flat = {name: values for name, values in given.items() if np.ndim(values) == 1}
    for name in ("item", "history", "x"):
        flat |= {f"{name}.{i}": given[name][:, i] for i in range(given[name].shape[1])}
    return Frame(flat)


@both_fronts
@pytest.mark.parametrize("form", [dict, of_rows, framed])
@pytest.mark.parametrize("count", [1, 7, 3000])
def test_the_client_takes_dicts_rows_and_frames(caller: Client, form: Any, count: int) -> None:
    given = rows(count)
    answer = caller.predict("ranker", form(given))
    assert answer.output.shape == (count,)
    np.testing.assert_allclose(answer.output, expected(given), **CLOSE)


@both_fronts
def test_streams_and_asyncio_take_the_same(caller: Client, served: Server) -> None:
    requests = [rows(2, seed=seed) for seed in range(5)]
    for item in caller.stream("ranker", requests):
        np.testing.assert_allclose(item.unwrap().output, expected(requests[item.index]), **CLOSE)

    async def ask() -> np.ndarray:
        async with AsyncClient(served.target) as client:
            return (await client.predict("ranker", requests[0])).output

    np.testing.assert_allclose(asyncio.run(ask()), expected(requests[0]), **CLOSE)


@both_fronts
def test_a_wrong_id_is_refused_counted_and_not_queued(caller: Client, served: Server) -> None:
    labels = {"model": "ranker", "version": "1", "input": "item"}
    assert caller.predict("ranker", rows(1)).output.shape == (1,)
    before, queued = (
        served.metric("fused_mlp_refused_ids_total", **labels),
        served.metric("fused_mlp_rows_total", model="ranker"),
    )
    with pytest.raises(PredictError) as refused:
        caller.predict("ranker", rows(3) | {"item": np.array([0, 1, 50])})
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.message == "input 'item', row 2: expected an id from 0 to 49, got 50"
    with pytest.raises(PredictError, match=r"inputs: expected 'user', 'item', .*, got no 'user'"):
        caller.predict("ranker", {name: values for name, values in rows(2).items() if name != "user"})
    assert served.metric("fused_mlp_refused_ids_total", **labels) == before + 1
    assert served.metric("fused_mlp_rows_total", model="ranker") == queued
    items = list(caller.stream("ranker", [rows(1), rows(1) | {"user": [100]}, rows(1)]))
    failed = {item.index for item in items if isinstance(item.result, PredictError)}
    assert failed == {1}


@both_fronts
def test_open_inference_over_grpc(served: Server) -> None:
    given = rows(4)
    request = oip.ModelInferRequest(model_name="ranker")
    types = {
        "user": "INT64",
        "item": "INT32",
        "history": "INT64",
        "country": "BYTES",
        "time": "INT64",
        "x": "FP32",
    }
    for name in ("x", "country", "time", "history", "user", "item"):
        values = np.asarray(given[name])
        tensor = request.inputs.add(name=name, datatype=types[name], shape=values.shape)
        if types[name] == "BYTES":
            tensor.contents.bytes_contents.extend(word.encode() for word in given[name])
        else:
            field = {"INT64": "int64", "INT32": "int", "FP32": "fp32"}[types[name]]
            getattr(tensor.contents, f"{field}_contents").extend(values.reshape(-1).tolist())
    with grpc.insecure_channel(served.target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        answer = stub.ModelInfer(request)
        metadata = stub.ModelMetadata(oip.ModelMetadataRequest(name="ranker"))
        config = stub.ModelConfig(oip.ModelConfigRequest(name="ranker")).config
    scores = np.frombuffer(answer.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(scores, expected(given), **CLOSE)
    found = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs}
    assert found["history"] == ("INT64", [-1, -1])
    assert found["country"] == ("BYTES", [-1])
    assert found["x"] == ("FP32", [-1, 3])
    assert {each.name: oip.DataType.Name(each.data_type) for each in config.input}["country"] == "TYPE_STRING"


@pytest.fixture
def rest(served: Server, front: str) -> Iterator[RestClient]:
    if front != "native":
        pytest.skip("the native front serves REST")
    client = RestClient(rest_port(served))
    yield client
    client.close()


def rest_inputs(given: dict[str, Any]) -> list[dict[str, Any]]:
    types = {"country": "BYTES", "x": "FP32"}
    return [
        {
            "name": name,
            "datatype": types.get(name, "INT64"),
            "shape": list(np.shape(values)),
            "data": np.asarray(values).tolist(),
        }
        for name, values in given.items()
    ]


def infer(rest: RestClient, inputs: list[dict[str, Any]], binary: bytes = b"") -> Any:
    head = json.dumps({"inputs": inputs}).encode()
    headers = {"Inference_Header_Content_Length": str(len(head))} if binary else {}
    return rest.ask("POST", "/v2/models/ranker/infer", head + binary, **headers)


@pytest.mark.parametrize("count", [1, 900])
def test_open_inference_over_rest(rest: RestClient, count: int) -> None:
    given = rows(count)
    answer = infer(rest, rest_inputs(given))
    assert answer.status == 200, answer.body
    np.testing.assert_allclose(answer.json["outputs"][0]["data"], expected(given), **CLOSE)
    inputs, binary = rest_inputs(given), b""
    for each in inputs:
        if each["name"] in ("user", "x"):
            data = np.asarray(given[each["name"]]).tobytes()
            del each["data"]
            each["parameters"] = {"binary_data_size": len(data)}
            binary += data
    answer = infer(rest, inputs, binary)
    assert answer.status == 200, answer.body
    np.testing.assert_allclose(answer.json["outputs"][0]["data"], expected(given), **CLOSE)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("user", {"data": [0, 100]}, "input 'user', row 1: expected an id from 0 to 99, got 100"),
        ("user", {"data": [0]}, "input 'user': expected 16 bytes for [2] INT64, got 8"),
        ("user", {"data": [0, 1.5]}, "data: expected whole numbers of up to 64 bits, got '1.5'"),
        (
            "user",
            {"data": [0, 1 << 64]},
            "data: expected whole numbers of up to 64 bits, got '18446744073709551616'",
        ),
        (
            "history",
            {"data": [[1, 2, 3], [4]]},
            "data: expected rows of one length, got 3 and 1 values; fill up shorter ones",
        ),
        ("country", {"data": ["de", 3]}, "data: expected a string, got '3'"),
        ("country", {"data": ["de", "\0"]}, None),
        ("country", {"data": ["de", "x" * (1 << 20)]}, None),
        ("x", {"name": "y"}, "inputs: expected 'user', 'item', 'history', 'country', 'time', 'x', got 'y'"),
        ("x", {"name": "user"}, "inputs: expected 'user' once, got it twice"),
        ("x", {"datatype": "FP3"}, "input 'x': expected numbers, got 'FP3'"),
    ],
)
def test_what_is_wrong_with_json_is_told_in_one_line(
    rest: RestClient, name: str, change: dict[str, Any], text: str | None
) -> None:
    inputs = rest_inputs(rows(2))
    next(each for each in inputs if each["name"] == name).update(change)
    answer = infer(rest, inputs)
    if text is None:  # a word that the model does not know, which it takes
        assert answer.status == 200, answer.body
    else:
        assert (answer.status, answer.error) == (400, text)
    raw = rest.ask("POST", "/v2/models/ranker/infer", bytes(48), Inference_Header_Content_Length="0")
    assert raw.error.startswith("body: expected JSON with inputs 'user', 'item'")


def test_metadata_describes_the_inputs(caller: Client, served: Server) -> None:
    version = caller.model("ranker").version()
    assert version is not None
    kinds = {each.name: (each.kind, each.tables, each.shape, each.vocabulary) for each in version.inputs}
    assert kinds["user"] == ("id", (100,), (), 0)
    assert kinds["country"] == ("string", (4,), (), 3)
    assert kinds["time"] == ("id", (24,), (), 0)
    assert version.named_example["x"] == tuple(EXAMPLE["x"])
    assert version.summary.startswith(
        "user id 100 x 8 | item id 50 x 8 | history bag 50 x 8 | country string 4 x 2"
    )
    assert next(step.detail for step in version.steps if step.name == "user_id") == "user"
    status = json.loads(served.get("/status.json")[1])
    found = status["models"][0]["versions"][0]["inputs"]
    assert found[0] == {"name": "user", "kind": "id", "shape": [], "tables": [100]}


def run(served: Server, *arguments: str) -> str:
    command = [sys.executable, "-m", "fused_mlp.service.cli", *arguments, "--target", served.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_maps_columns_by_name(served: Server, tmp_path: Path) -> None:
    given = rows(3)
    header = ["label", "user", "item", "history", "country", "time", "x.0", "x.1", "x.2"]
    lines = [",".join(header)]
    for row in of_rows(given):
        history = " ".join(map(str, row["history"]))
        cells = ["9", row["user"], row["item"][0], history, row["country"], row["time"], *row["x"]]
        lines.append(",".join(map(str, cells)))
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(lines))
    objects = tmp_path / "rows.jsonl"
    objects.write_text("\n".join(json.dumps(row) for row in of_rows(given)))
    whole = tmp_path / "rows.json"
    whole.write_text(json.dumps(of_rows(given)))
    for path in (table, objects, whole):
        output = json.loads(run(served, "predict", "ranker", "--input", str(path), "--json"))["output"]
        np.testing.assert_allclose(np.ravel(output), expected(given), **CLOSE)
    example = json.loads(run(served, "predict", "ranker", "--example", "--json"))["output"]
    np.testing.assert_allclose(
        np.ravel(example), expected({name: [values] for name, values in EXAMPLE.items()}), **CLOSE
    )
    assert "user: id 100" in run(served, "models", "ranker")
    assert "user, item, history" in run(served, "models", "ranker", "--graph")


def test_a_shadow_of_other_tables_is_refused(tmp_path: Path) -> None:
    """Its kernel would get ids that were checked against larger tables."""
    from fused_mlp.service.catalog.records import ServedModel, ServedVersion
    from fused_mlp.service.policy.arm import Arm

    small, large = (
        ServedVersion("ranker", number, "READY", spec=ranker(users).spec)
        for number, users in ((1, 10), (2, 100))
    )
    served = ServedModel("ranker", (small, large))
    assert (
        served.shadow_problem(Arm("1"))
        == "its inputs or tables differ from those of the version that answers"
    )
    assert served.arm_problem(Arm("1")) == ""


def test_profile_shows_the_lookups(root: Path) -> None:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "profile", str(root / "ranker" / "1")]
    command += ["--json", "--batch", "1,4", "--variants", "eager,fused", "--budget", "0.02"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == {}
    assert {(point["variant"], point["batch"]) for point in found["points"]} == {
        (variant, batch) for variant in ("eager", "fused") for batch in (1, 4)
    }
    assert any(step["what"].startswith("embedding") and step["fused_us"] > 0 for step in found["steps"])
