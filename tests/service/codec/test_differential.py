# SPDX-License-Identifier: Apache-2.0
"""The codec against the protobuf runtime, on messages that hypothesis makes up."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from tests.service.codec.oracle import CODECS, MESSAGES, codec_fields, protobuf_fields

UNREADABLE = "got bytes that cannot be read as one"

texts = st.text(max_size=8)
raw = st.binary(max_size=24)
shapes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=12)
floats = st.lists(st.floats(width=32), max_size=4)
doubles = st.lists(st.floats(), max_size=4)

arms = st.sampled_from(["3/fused", "3", "unfused", "stable", "stable/unfused", "3/fast", "Stable", "07"])

tensors = st.builds(
    fm.Tensor, shape=shapes, dtype=st.integers(0, 5), data=st.just(b"") | raw, values=st.just([]) | floats
)
predict_requests = st.builds(
    fm.PredictRequest,
    model=texts,
    version=st.integers(-1, 2**63 - 1),
    input=tensors,
    variant=st.integers(0, 3),
    request_id=texts,
    output=st.sampled_from(["", "*", "v"]) | texts,
    arm=st.just("") | arms | texts,
    inputs=st.just([]) | st.lists(st.builds(fm.NamedTensor, name=texts, tensor=tensors), max_size=2),
)

contents = st.builds(
    oip.InferTensorContents,
    fp32_contents=st.just([]) | floats,
    fp64_contents=st.just([]) | doubles,
    int_contents=st.lists(st.integers(0, 9), max_size=1),
)
inputs = st.builds(
    oip.ModelInferRequest.InferInputTensor,
    name=st.just("input") | texts,
    datatype=st.sampled_from(["FP32", "FP16", "BF16", "FP64", "INT8", ""]),
    shape=shapes,
    contents=st.none() | contents,
)
parameters = st.builds(
    oip.InferParameter, string_param=st.sampled_from(["fused", "unfused", "", "fast"]) | arms
) | st.builds(oip.InferParameter, int64_param=st.integers(0, 9))
infer_requests = st.builds(
    oip.ModelInferRequest,
    model_name=texts,
    model_version=st.sampled_from(["", "1", "007", "0", "x"]),
    id=texts,
    parameters=st.dictionaries(st.sampled_from(["variant", "arm"]) | texts, parameters, max_size=2),
    inputs=st.lists(inputs, max_size=2),
    outputs=st.lists(
        st.builds(oip.ModelInferRequest.InferRequestedOutputTensor, name=st.just("output") | texts),
        max_size=3,
    ),
    raw_input_contents=st.lists(raw, max_size=2),
)
requests = st.one_of(
    st.tuples(st.just("predict"), predict_requests), st.tuples(st.just("infer"), infer_requests)
)


def compare(api: str, message: bytes) -> None:
    """Where the codec finds nothing wrong, protobuf reads the same."""
    request = CODECS[api].decode(message)
    if not request.error:
        assert codec_fields(request) == protobuf_fields(api, message)


@given(requests)
def test_reads_what_protobuf_writes(sample: tuple[str, fm.PredictRequest | oip.ModelInferRequest]) -> None:
    api, request = sample
    message = request.SerializeToString()
    assert UNREADABLE not in CODECS[api].decode(message).error
    compare(api, message)


@given(requests, requests)
def test_merges_like_protobuf(
    first: tuple[str, fm.PredictRequest | oip.ModelInferRequest],
    second: tuple[str, fm.PredictRequest | oip.ModelInferRequest],
) -> None:
    """Two messages in one are one message, by the rules of protobuf."""
    api = first[0]
    message = first[1].SerializeToString() + second[1].SerializeToString()
    try:
        MESSAGES[api].FromString(message)
    except DecodeError:
        return  # of different kinds
    compare(api, message)


@given(requests, st.data())
def test_reads_broken_messages_like_protobuf_or_not_at_all(
    sample: tuple[str, fm.PredictRequest | oip.ModelInferRequest], data: st.DataObject
) -> None:
    api, request = sample
    message = bytearray(request.SerializeToString())
    if not message:
        return
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    message = message[: data.draw(st.integers(0, len(message)))]
    try:
        MESSAGES[api].FromString(bytes(message))
    except DecodeError:
        return
    compare(api, bytes(message))
