# SPDX-License-Identifier: Apache-2.0
"""Bad requests over a real socket: each gets its code and one line that says what was expected and
what came; the server goes on answering good ones."""

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client
from tests.support.fronts import both_fronts
from tests.support.server import Server

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
ROW = np.zeros(64, np.float32).tobytes()


@pytest.fixture(autouse=True)
def _still_answers(client: Client, example: np.ndarray) -> Iterator[None]:
    yield
    assert client.predict("digits", example).output.shape == (10,)


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.target) as opened:
        yield opened


def tensor(shape: list[int], data: bytes = ROW, **fields: object) -> fm.Tensor:
    return fm.Tensor(shape=shape, data=data, **fields)


def predict(**fields: object) -> fm.PredictRequest:
    return fm.PredictRequest(**{"model": "digits", "input": tensor([1, 64]), **fields})


BAD_PREDICTS = {
    "wrong width": (predict(input=tensor([1, 63], ROW[:-4])), INVALID, ["64", "63"]),
    "wrong byte count": (predict(input=tensor([1, 64], ROW[:-1])), INVALID, ["256", "255"]),
    "shape of other bytes": (predict(input=tensor([2, 64])), INVALID, ["512", "256"]),
    "no rows": (predict(input=tensor([0, 64], b"")), INVALID, ["row"]),
    "too many rows": (predict(input=tensor([4097, 64], ROW * 4097)), INVALID, ["4096", "4097"]),
    "negative rows": (predict(input=tensor([-1, 64])), INVALID, ["-1"]),
    "overflowing shape": (predict(input=tensor([1 << 62, 64])), INVALID, [str(1 << 62)]),
    "three dimensions": (predict(input=tensor([1, 32, 1])), INVALID, ["[rows, 64]", "[1, 32, 1]"]),
    "ten dimensions": (predict(input=tensor([1] * 9 + [64])), INVALID, ["[rows, 64]"]),
    "unknown output": (predict(output="logits"), INVALID, ["'output'", "'logits'"]),
    "no shape with data": (predict(input=fm.Tensor(data=ROW)), INVALID, ["shape"]),
    "unknown dtype": (predict(input=tensor([1, 64], dtype=99)), INVALID, ["99", "FP32"]),
    "dtype of other bytes": (predict(input=tensor([1, 64], dtype=fm.FP64)), INVALID, ["512", "256"]),
    "data and values": (predict(input=tensor([1, 64], values=[1.0] * 64)), INVALID, ["both"]),
    "too few values": (predict(input=fm.Tensor(values=[1.0] * 7)), INVALID, ["64", "7"]),
    "unknown variant": (predict(variant=7), INVALID, ["7", "FUSED"]),
    "no input": (predict(input=None), INVALID, ["shape", "[rows, 64]"]),
    "unknown model": (predict(model="nonesuch"), NOT_FOUND, ["nonesuch"]),
    "long unknown model": (predict(model="x" * 100_000), NOT_FOUND, ["..."]),
    "unknown version": (predict(version=99), NOT_FOUND, ["99"]),
    "negative version": (predict(version=-1), INVALID, ["-1"]),
    "empty message": (fm.PredictRequest(), NOT_FOUND, ["''"]),
}


@both_fronts
@pytest.mark.parametrize("case", BAD_PREDICTS)
def test_bad_predict_is_refused(channel: grpc.Channel, case: str) -> None:
    request, code, said = BAD_PREDICTS[case]
    with pytest.raises(grpc.RpcError) as failure:
        Stub(channel, fm, "Inference").Predict(request)
    assert failure.value.code() is code
    details = failure.value.details()
    assert all(text in details for text in said), details
    assert "\n" not in details
    assert len(details) < 300


def infer(**fields: object) -> oip.ModelInferRequest:
    entry = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 64])
    return oip.ModelInferRequest(
        **{"model_name": "digits", "inputs": [entry], "raw_input_contents": [ROW], **fields}
    )


def entry(**fields: object) -> oip.ModelInferRequest.InferInputTensor:
    return oip.ModelInferRequest.InferInputTensor(
        **{"name": "input", "datatype": "FP32", "shape": [1, 64], **fields}
    )


TYPED = oip.InferTensorContents(fp32_contents=[0.0] * 64)
BAD_INFERS = {
    "wrong width": (
        infer(inputs=[entry(shape=[1, 63])], raw_input_contents=[ROW[:-4]]),
        INVALID,
        ["64", "63"],
    ),
    "wrong name": (infer(inputs=[entry(name="x")]), INVALID, ["input", "'x'"]),
    "two inputs": (infer(inputs=[entry(), entry()], raw_input_contents=[ROW, ROW]), INVALID, ["one"]),
    "no input": (infer(inputs=[], raw_input_contents=[]), INVALID, ["none"]),
    "unknown datatype": (infer(inputs=[entry(datatype="INT8")]), INVALID, ["INT8", "FP32"]),
    "raw and typed": (infer(inputs=[entry(contents=TYPED)]), INVALID, ["both"]),
    "typed as another type": (
        infer(inputs=[entry(datatype="FP64", contents=TYPED)], raw_input_contents=[]),
        INVALID,
        ["fp64_contents", "fp32_contents"],
    ),
    "neither raw nor typed": (infer(raw_input_contents=[]), INVALID, ["raw_input_contents"]),
    "unknown output": (
        infer(outputs=[oip.ModelInferRequest.InferRequestedOutputTensor(name="y")]),
        INVALID,
        ["output", "'y'"],
    ),
    "version in words": (infer(model_version="latest"), INVALID, ["latest"]),
    "unknown version": (infer(model_version="99"), NOT_FOUND, ["99"]),
    "unknown model": (infer(model_name="nonesuch"), NOT_FOUND, ["nonesuch"]),
}


@both_fronts
@pytest.mark.parametrize("case", BAD_INFERS)
def test_bad_infer_is_refused(channel: grpc.Channel, case: str) -> None:
    request, code, said = BAD_INFERS[case]
    with pytest.raises(grpc.RpcError) as failure:
        Stub(channel, oip, "GRPCInferenceService").ModelInfer(request)
    assert failure.value.code() is code
    details = failure.value.details()
    assert all(text in details for text in said), details


@both_fronts
def test_truncated_message_fails_alone(server: Server, channel: grpc.Channel) -> None:
    before = server.metric("fused_mlp_requests_total", model="", code="INVALID_ARGUMENT")
    call = channel.unary_unary("/fused_mlp.v1.Inference/Predict")
    whole = predict().SerializeToString()
    with pytest.raises(grpc.RpcError) as failure:
        call(whole[: len(whole) // 2])
    assert failure.value.code() is INVALID
    assert "PredictRequest" in failure.value.details()
    assert server.metric("fused_mlp_requests_total", model="", code="INVALID_ARGUMENT") == before + 1


@both_fronts
def test_message_beyond_the_size_limit_is_refused(channel: grpc.Channel) -> None:
    huge = predict(input=tensor([1, 64], b"\0" * (64 << 20)))
    with pytest.raises(grpc.RpcError) as failure:
        Stub(channel, fm, "Inference").Predict(huge)
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@both_fronts
def test_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    for path in ("/fused_mlp.v1.Inference/Nonesuch", "/nonesuch.Service/Predict"):
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(path)(b"")
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


@both_fronts
def test_every_refusal_is_counted_once_and_no_made_up_name_becomes_a_label(
    server: Server, channel: grpc.Channel
) -> None:
    stub = Stub(channel, fm, "Inference")
    invalid = server.metric("fused_mlp_requests_total", model="digits", code="INVALID_ARGUMENT")
    unknown = server.metric("fused_mlp_requests_total", model="", code="NOT_FOUND")
    for request in (predict(input=tensor([1, 63])), predict(model="made-up-name")):
        with pytest.raises(grpc.RpcError):
            stub.Predict(request)
    assert server.metric("fused_mlp_requests_total", model="digits", code="INVALID_ARGUMENT") == invalid + 1
    assert server.metric("fused_mlp_requests_total", model="", code="NOT_FOUND") == unknown + 1
    assert "made-up-name" not in server.get("/metrics")[1]
