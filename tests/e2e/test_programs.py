# SPDX-License-Identifier: Apache-2.0
"""Programs with several outputs, shapes of their own and skips over a real socket, by both APIs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import AsyncClient, Client, PredictError
from tests.support.fronts import both_fronts
from tests.support.programs import PROGRAMS, save_programs
from tests.support.server import Server

POLICY, IMAGES = PROGRAMS["policy"], PROGRAMS["images"]
# Sums of at most 24 products of order one: float32 is off by some 1e-6.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def served(front: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = save_programs(tmp_path_factory.mktemp("programs"))
    with Server(front=front, model_repository=root) as running:
        yield running


@pytest.fixture(scope="module")
def caller(served: Server) -> Iterator[Client]:
    with Client(served.target) as connected:
        yield connected


@pytest.fixture(scope="module")
def inference(served: Server) -> Iterator[Stub]:
    with grpc.insecure_channel(served.target) as channel:
        yield Stub(channel, oip, "GRPCInferenceService")


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)


def expected(name: str, x: np.ndarray, output: str) -> np.ndarray:
    """(rows, width) float32, by the numpy reference."""
    mlp = PROGRAMS[name]
    y = evaluate(mlp, x.reshape(len(x), -1).astype(np.float64))
    return y[:, mlp.spec.columns(output)].astype(np.float32)


def infer_request(x: np.ndarray, *outputs: str, model: str = "policy") -> oip.ModelInferRequest:
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape)
    wanted = [oip.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs]
    return oip.ModelInferRequest(
        model_name=model, inputs=[tensor], outputs=wanted, raw_input_contents=[x.tobytes()]
    )


def answers(response: oip.ModelInferResponse) -> dict[str, np.ndarray]:
    """In the order of the response."""
    return {
        output.name: np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


# ---- fused_mlp.v1 and the Python clients


@both_fronts
def test_predict_answers_the_first_output_unless_asked(caller: Client, x: np.ndarray) -> None:
    first = caller.predict("policy", x)
    np.testing.assert_allclose(first.output, expected("policy", x, "pi"), **CLOSE)
    assert list(first.outputs) == ["pi"]
    value = caller.predict("policy", x, output="v")
    np.testing.assert_allclose(value.output, expected("policy", x, "v")[:, 0], **CLOSE)
    assert list(value.outputs) == ["v"]


@both_fronts
def test_predict_answers_all_outputs_at_once(caller: Client, x: np.ndarray) -> None:
    prediction = caller.predict("policy", x, output="*")
    assert {name: y.shape for name, y in prediction.outputs.items()} == {"pi": (5, 4), "v": (5,)}
    assert prediction.output is prediction.outputs["pi"]
    for name, y in prediction.outputs.items():
        np.testing.assert_array_equal(y, caller.predict("policy", x, output=name).output)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_heads_come_in_the_dtype_of_the_request(caller: Client, x: np.ndarray, dtype: type) -> None:
    y = caller.predict("policy", x.astype(dtype), output="*").outputs
    assert {name: each.dtype.type for name, each in y.items()} == {"pi": dtype, "v": dtype}
    np.testing.assert_allclose(y["pi"], expected("policy", x, "pi"), atol=1e-2)  # a half has 11 bits


def test_squeezed_output_has_the_dimensions_of_the_input_without_the_last(
    caller: Client, x: np.ndarray
) -> None:
    for given, shape in ((x, (5,)), (x[0], ()), (x[:4].reshape(2, 2, 8), (2, 2))):
        y = caller.predict("policy", given, output="v").output
        assert y.shape == shape
        wanted = expected("policy", given.reshape(-1, 8), "v")
        np.testing.assert_allclose(y, wanted.reshape(shape), **CLOSE)


@both_fronts
async def test_asyncio_client_and_streams_select_outputs(served: Server, x: np.ndarray) -> None:
    wanted = expected("policy", x, "v")[:, 0]
    async with AsyncClient(served.target) as caller:
        y = (await caller.predict("policy", x, output="v")).output
        np.testing.assert_allclose(y, wanted, **CLOSE)
        async for item in caller.stream("policy", [x, x[:2]], output="v"):
            y = item.unwrap().output
            np.testing.assert_allclose(y, wanted[: len(y)], **CLOSE)


def test_response_names_its_output(served: Server, x: np.ndarray) -> None:
    with grpc.insecure_channel(served.target) as channel:
        stub = Stub(channel, fm, "Inference")
        tensor = fm.Tensor(shape=[1, 8], data=x[0].tobytes())
        response = stub.Predict(fm.PredictRequest(model="policy", input=tensor, output="*"))
        assert (response.output_name, list(response.output.shape), response.squeeze) == ("pi", [1, 4], False)
        (other,) = response.others
        assert (other.name, list(other.output.shape), other.squeeze) == ("v", [1, 1], True)
        values = fm.PredictRequest(model="policy", input=fm.Tensor(values=x[0]), output="*")
        typed = stub.Predict(values)
        np.testing.assert_array_equal(typed.others[0].output.values, np.frombuffer(other.output.data, "<f4"))
        only = stub.Predict(fm.PredictRequest(model="images", input=fm.Tensor(shape=[1, 16], data=bytes(64))))
        assert (only.output_name, only.squeeze) == ("", True)


@pytest.mark.parametrize("name", ["q", "output", "V", ""])
def test_unknown_output_is_refused_by_name(
    served: Server, caller: Client, inference: Stub, x: np.ndarray, name: str
) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        inference.ModelInfer(infer_request(x, "pi", name))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.value.details() == f"outputs: expected 'pi' or 'v', got '{name}'"
    if not name:
        return  # the first one
    with pytest.raises(PredictError) as error:
        caller.predict("policy", x, output=name)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"output: expected 'pi' or 'v', got '{name}'" in str(error.value)


# ---- shapes


def test_input_is_taken_in_the_shape_of_the_model_or_flat(
    caller: Client, inference: Stub, x: np.ndarray
) -> None:
    pixels = np.random.default_rng(2).standard_normal((6, 1, 4, 4)).astype(np.float32)
    wanted = expected("images", pixels, "output")
    for given in (pixels, pixels.reshape(6, 16)):
        y = caller.predict("images", given).output
        assert y.shape == (6,)
        np.testing.assert_allclose(y, wanted[:, 0], **CLOSE)
        (answer,) = answers(inference.ModelInfer(infer_request(given, model="images"))).values()
        assert answer.shape == (6, 1)
        np.testing.assert_array_equal(answer[:, 0], y)
    assert caller.predict("images", pixels.reshape(3, 2, 1, 4, 4)).output.shape == (3, 2)
    with pytest.raises(PredictError, match=r"expected \[rows, 1, 4, 4\] or \[rows, 16\], got \[6, 4, 4, 1\]"):
        caller.predict("images", pixels.reshape(6, 4, 4, 1))


def test_row_of_a_model_without_a_shape_may_have_any_of_its_size(
    caller: Client, inference: Stub, x: np.ndarray
) -> None:
    wanted = caller.predict("policy", x).output
    for shape in ((5, 2, 4), (5, 2, 2, 2)):
        given = x.reshape(shape)
        np.testing.assert_array_equal(caller.predict("policy", given).output, wanted)
        np.testing.assert_array_equal(answers(inference.ModelInfer(infer_request(given)))["pi"], wanted)
    with pytest.raises(PredictError, match=r"expected 8 columns, got 4 in \[2, 4\]"):
        caller.predict("policy", x[0].reshape(2, 4))


# ---- the Open Inference Protocol


@both_fronts
def test_infer_answers_each_output_as_a_tensor(inference: Stub, x: np.ndarray) -> None:
    both = answers(inference.ModelInfer(infer_request(x)))
    assert {name: y.shape for name, y in both.items()} == {"pi": (5, 4), "v": (5, 1)}
    for name, y in both.items():
        np.testing.assert_allclose(y, expected("policy", x, name), **CLOSE)
    for names in (("v",), ("v", "pi"), ("pi", "v")):
        some = answers(inference.ModelInfer(infer_request(x, *names)))
        assert tuple(some) == names
        for name in names:
            np.testing.assert_array_equal(some[name], both[name])
    (streamed,) = inference.ModelStreamInfer(iter([infer_request(x, "v")]))
    np.testing.assert_array_equal(answers(streamed.infer_response)["v"], both["v"])


def test_metadata_and_config_list_the_outputs_and_the_shape_of_the_input(inference: Stub) -> None:
    metadata = inference.ModelMetadata(oip.ModelMetadataRequest(name="policy"))
    assert [(t.name, list(t.shape)) for t in metadata.outputs] == [("pi", [-1, 4]), ("v", [-1, 1])]
    config = inference.ModelConfig(oip.ModelConfigRequest(name="policy")).config
    assert [(t.name, list(t.dims)) for t in config.output] == [("pi", [4]), ("v", [1])]
    assert config.parameters["program"].string_value == "8 -> 16 tanh => pi 4 softmax, v 1"
    metadata = inference.ModelMetadata(oip.ModelMetadataRequest(name="images"))
    assert list(metadata.inputs[0].shape) == [-1, 1, 4, 4]
    config = inference.ModelConfig(oip.ModelConfigRequest(name="images")).config
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([1, 4, 4], [1])


# ---- what is said about them


def test_client_describes_programs(caller: Client) -> None:
    version = caller.model("policy").versions[0]
    assert [(o.name, o.width, o.squeeze) for o in version.outputs] == [("pi", 4, False), ("v", 1, True)]
    assert (version.summary, version.output_activation) == (POLICY.spec.summary(), "softmax")
    assert [(step.name, step.op, step.inputs) for step in version.steps] == [
        (step.name, step.op, step.sources) for step in POLICY.spec.steps
    ]
    assert caller.model("images").versions[0].input_shape == IMAGES.spec.input_shape
    listed = {model.name: model.versions[0] for model in caller.models()}
    assert listed["tower"].summary == "12 -> 3 x [ln, 24 gelu, 12, +] -> 3"
    assert listed["tower"].steps == ()  # in full on request alone


def test_status_and_metrics_have_the_program_in_one_line(served: Server, caller: Client) -> None:
    status = json.loads(served.get("/status.json")[1])
    shapes = {model["name"]: model["versions"][0]["shape"] for model in status["models"]}
    assert shapes["policy"] == "8 -> 16 tanh => pi 4 softmax, v 1"
    caller.predict("policy", np.zeros((1, 8), np.float32))
    assert served.metric("fused_mlp_kernel_info", shape=shapes["policy"]) > 0


def test_command_line_selects_outputs_and_draws_programs(served: Server, caller: Client) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fused_mlp.service.cli", *arguments, "--target", served.target]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    shown = run("predict", "policy", "--example").stdout
    assert "probability" in shown
    assert "--output-name has v" in shown
    answer = json.loads(run("predict", "policy", "--example", "--output-name", "v", "--json").stdout)
    assert (answer["output_name"], len(answer["output"])) == ("v", 1)
    assert "expected 'pi' or 'v'" in run("predict", "policy", "--example", "--output-name", "q").stderr
    (line,) = run("predict", "policy", "--example", "--output-name", "*", "-o", "-").stdout.splitlines()
    assert len(json.loads(line)["pi"]) == 4
    assert json.loads(line)["v"] == pytest.approx(answer["output"][0], rel=1e-6)  # 9 digits, 17 digits
    drawn = run("models", "tower", "--graph").stdout
    assert "blocks.0-2.fc1" in drawn
    assert "3 x" in drawn
    described = run("models", "policy").stdout
    assert "v: 1 number, answered as (rows,)" in described
