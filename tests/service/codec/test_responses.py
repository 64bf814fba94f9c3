# SPDX-License-Identifier: Apache-2.0
"""What the codec makes of a decoded request: its rows, checked against a model, and the response messages, as the
protobuf runtime reads them."""

from __future__ import annotations

import select
from collections.abc import Iterator

import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.service import _engine
from fused_mlp.service._engine import CompletionQueue, Engine, RouteEntry, Router, Status

PATIENCE_S = 30.0
DTYPES = {"FP32": np.float32, "FP16": np.float16, "FP64": np.float64}


def run(x: np.ndarray, y: np.ndarray) -> str:
    y[:] = 2 * x[:, :2]
    return "puppet"


class Model:
    """Three inputs, two outputs, at most ten rows."""

    def __init__(self) -> None:
        self.engine = Engine(workers=1)
        lane = self.engine.add_lane(kernel=run, in_features=3, out_features=2)
        router = Router()
        router.publish(
            [RouteEntry(model="m", version=7, fused=lane, in_features=3, out_features=2, max_request_rows=10)]
        )
        self.route = router.resolve("m")

    def answer(self, codec: _engine.Codec, message: bytes) -> bytes:
        request = codec.decode(message)
        assert request.error == ""
        rows, queue = request.check_rows(self.route), CompletionQueue()
        self.engine.submit(self.route.lane, request.data, request.dtype, rows, 0, None, queue)
        assert select.select([queue.fileno()], [], [], PATIENCE_S)[0]
        return codec.encode(request, self.route, queue.drain()[0])


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.engine.stop()


def predict_message(shape: list[int], data: bytes) -> bytes:
    return fm.PredictRequest(input=fm.Tensor(shape=shape, data=data)).SerializeToString()


@pytest.mark.parametrize(("shape", "byte_count", "rows"), [([2, 3], 24, 2), ([3], 12, 1), ([10, 3], 120, 10)])
def test_tensor_that_fits_gives_its_rows(model: Model, shape: list[int], byte_count: int, rows: int) -> None:
    request = _engine.PREDICT_CODEC.decode(predict_message(shape, bytes(byte_count)))
    assert request.check_rows(model.route) == rows
    values = fm.Tensor(shape=shape, values=[0.0] * (byte_count // 4))
    typed = _engine.PREDICT_CODEC.decode(fm.PredictRequest(input=values).SerializeToString())
    assert typed.check_rows(model.route) == rows


@pytest.mark.parametrize(
    ("shape", "byte_count", "text"),
    [
        ([2, 3], 23, "data: expected 24 bytes"),
        ([2, 4], 32, "expected 3 columns, got 4"),
        ([0, 3], 0, "at least 1 row"),
        ([-2, 3], 24, "at least 1"),
        ([2**62, 3], 24, "at most 10 rows"),
        ([], 12, "expected [rows, 3] or [3]"),
        ([1] * 20, 24, "expected [rows, 3] or [3]"),
    ],
)
def test_tensor_that_does_not_fit_gets_a_precise_text(
    model: Model, shape: list[int], byte_count: int, text: str
) -> None:
    request = _engine.PREDICT_CODEC.decode(predict_message(shape, bytes(byte_count)))
    with pytest.raises(_engine.Refused) as refused:
        request.check_rows(model.route)
    assert refused.value.status is Status.invalid_input
    assert text in str(refused.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_predict_response(model: Model, dtype: str) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], DTYPES[dtype])
    tensor = fm.Tensor(shape=x.shape, dtype=fm.DataType.Value(dtype), data=x.tobytes())
    request = fm.PredictRequest(model="m", input=tensor, request_id="é" * 100)
    answer = model.answer(_engine.PREDICT_CODEC, request.SerializeToString())
    response = fm.PredictResponse.FromString(answer)
    assert (response.model, response.version, response.variant) == ("m", 7, fm.FUSED)
    assert (response.strategy, response.request_id, response.timings.batch_rows) == ("puppet", "é" * 100, 2)
    assert response.timings.compute_ns > 0
    assert (list(response.output.shape), response.output.dtype) == ([2, 2], tensor.dtype)
    y = np.frombuffer(response.output.data, DTYPES[dtype]).reshape(2, 2)
    np.testing.assert_array_equal(y, 2 * x[:, :2])


def test_predict_response_to_values_has_values(model: Model) -> None:
    request = fm.PredictRequest(input=fm.Tensor(values=[1, 2, 3]))
    answer = model.answer(_engine.PREDICT_CODEC, request.SerializeToString())
    output = fm.PredictResponse.FromString(answer).output
    assert (list(output.values), output.data) == ([2, 4], b"")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("streams", [False, True])
def test_infer_response(model: Model, dtype: str, streams: bool) -> None:
    x = np.array([[1, 2, 3]], DTYPES[dtype])
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype=dtype, shape=x.shape)
    request = oip.ModelInferRequest(
        model_name="m", id="id", inputs=[tensor], raw_input_contents=[x.tobytes()]
    ).SerializeToString()
    if streams:
        answer = model.answer(_engine.INFER_STREAM_CODEC, request)
        response = oip.ModelStreamInferResponse.FromString(answer).infer_response
    else:
        response = oip.ModelInferResponse.FromString(model.answer(_engine.INFER_CODEC, request))
    assert (response.model_name, response.model_version, response.id) == ("m", "7", "id")
    assert response.parameters["variant"].string_param == "fused"
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("output", dtype, [1, 2])
    np.testing.assert_array_equal(np.frombuffer(response.raw_output_contents[0], DTYPES[dtype]), 2 * x[0, :2])


def test_errors_on_streams_carry_the_id_of_their_request() -> None:
    message = _engine.PREDICT_CODEC.encode_error("id", 3, "no good")
    assert fm.PredictResponse.FromString(message) == fm.PredictResponse(
        request_id="id", error=fm.Error(code=3, message="no good")
    )
    message = _engine.INFER_STREAM_CODEC.encode_error("id", 3, "no good")
    assert oip.ModelStreamInferResponse.FromString(message) == oip.ModelStreamInferResponse(
        error_message="no good", infer_response=oip.ModelInferResponse(id="id")
    )


@pytest.mark.parametrize(
    ("text", "kept"), [("x" * 100, 80), ("é" * 100, 40), ("x" + "é" * 100, 40), ("id", 2)]
)
def test_id_is_cut_to_80_bytes_and_never_inside_a_character(text: str, kept: int) -> None:
    request = _engine.PREDICT_CODEC.decode(fm.PredictRequest(request_id=text).SerializeToString())
    assert (request.request_id, request.short_id) == (text, text[:kept])
