# SPDX-License-Identifier: Apache-2.0
"""The cases of gRPC's own interoperability list that apply to us, with grpcio, sync and asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos.stubs import Stub
from tests.conformance.conftest import Endpoint

TIMEOUT_S = 20


def request(request_id: str = "", rows: int = 1, model: str = "digits") -> fm.PredictRequest:
    data = np.full((rows, 64), 0.5, np.float32).tobytes()
    return fm.PredictRequest(model=model, request_id=request_id, input=fm.Tensor(shape=[rows, 64], data=data))


def credentials(endpoint: Endpoint) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(endpoint.ca.read_bytes()) if endpoint.ca else None


@pytest.fixture(scope="module")
def channel(endpoint: Endpoint) -> Iterator[grpc.Channel]:
    options = [("grpc.max_receive_message_length", -1)]
    made = credentials(endpoint)
    where = f"localhost:{endpoint.port}"
    with (
        grpc.secure_channel(where, made, options) if made else grpc.insecure_channel(where, options) as opened
    ):
        yield opened


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Stub:
    return Stub(channel, fm, "Inference")


class Feed:
    """Requests for a stream, handed over one by one."""

    def __init__(self) -> None:
        self._queue: queue.Queue[fm.PredictRequest | None] = queue.Queue()
        self.put = self._queue.put

    def __iter__(self) -> Iterator[fm.PredictRequest]:
        return iter(self._queue.get, None)


def test_empty_unary(channel: grpc.Channel) -> None:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_large_unary(stub: Stub) -> None:
    answer = stub.Predict(request("large", 4096), timeout=TIMEOUT_S)
    assert list(answer.output.shape) == [4096, 10]
    assert len(answer.output.data) == 4096 * 10 * 4


def test_many_at_once(stub: Stub) -> None:
    calls = [stub.Predict.future(request(str(i)), timeout=TIMEOUT_S) for i in range(300)]
    assert [call.result().request_id for call in calls] == [str(i) for i in range(300)]


def test_ping_pong(stub: Stub) -> None:
    feed = Feed()
    answers = stub.PredictStream(iter(feed), timeout=TIMEOUT_S)
    for index in range(20):
        feed.put(request(str(index), rows=1 + index))
        answer = next(answers)
        assert (answer.request_id, answer.output.shape[0]) == (str(index), 1 + index)
    feed.put(None)
    assert list(answers) == []
    assert answers.code() is grpc.StatusCode.OK


def test_empty_stream(stub: Stub) -> None:
    assert list(stub.PredictStream(iter(()), timeout=TIMEOUT_S)) == []


def test_stream_of_many_answers_each(stub: Stub) -> None:
    answers = list(stub.PredictStream((request(str(i)) for i in range(2000)), timeout=TIMEOUT_S))
    assert {answer.request_id for answer in answers} == {str(i) for i in range(2000)}
    assert not any(answer.HasField("error") for answer in answers)


def test_bad_message_on_a_stream_fails_alone(stub: Stub) -> None:
    sent = [request("1"), request("2", model="nonesuch"), request("3")]
    answers = {a.request_id: a.error.code for a in stub.PredictStream(iter(sent), timeout=TIMEOUT_S)}
    assert answers == {"1": 0, "2": grpc.StatusCode.NOT_FOUND.value[0], "3": 0}


def test_cancel_after_begin(stub: Stub) -> None:
    feed = Feed()
    call = stub.PredictStream(iter(feed))
    call.cancel()
    assert call.code() is grpc.StatusCode.CANCELLED
    feed.put(None)


def test_cancel_after_first_response(stub: Stub) -> None:
    feed = Feed()
    call = stub.PredictStream(iter(feed))
    feed.put(request("first"))
    assert next(call).request_id == "first"
    call.cancel()
    assert call.code() is grpc.StatusCode.CANCELLED
    feed.put(None)


def test_timeout(stub: Stub) -> None:
    feed = Feed()
    call = stub.PredictStream(iter(feed), timeout=0.05)
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    feed.put(None)


def test_custom_metadata(stub: Stub) -> None:
    metadata = (("x-text", "value"), ("x-data-bin", b"\x00\xff\n"), ("x-empty", ""))
    assert stub.Predict(request("m"), metadata=metadata, timeout=TIMEOUT_S).request_id == "m"
    assert stub.ListModels(fm.ListModelsRequest(), metadata=metadata, timeout=TIMEOUT_S).models


def test_status_code_and_special_message(stub: Stub) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request(model="no such: 100 % ☃ \U0001f600 é"), timeout=TIMEOUT_S)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert "100 % ☃ \U0001f600 é" in failure.value.details()


def test_unimplemented_method_and_service(channel: grpc.Channel) -> None:
    for path in ("/fused_mlp.v1.Inference/Nonesuch", "/nonesuch.Service/Method"):
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(path)(b"", timeout=TIMEOUT_S)
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_compressed_unary_and_stream(stub: Stub) -> None:
    gzip = grpc.Compression.Gzip
    assert stub.Predict(request("z", 200), compression=gzip, timeout=TIMEOUT_S).request_id == "z"
    sent = iter([request("1", 50), request("2")])
    answers = stub.PredictStream(sent, compression=gzip, timeout=TIMEOUT_S)
    assert {answer.request_id for answer in answers} == {"1", "2"}


def test_unsupported_compression_is_refused(stub: Stub, endpoint: Endpoint) -> None:
    if endpoint.front == "python":
        pytest.skip("grpcio serves deflate too")
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request("z", 200), compression=grpc.Compression.Deflate, timeout=TIMEOUT_S)
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_health_watch_stays_open(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="digits"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert not watch.done()
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(channel: grpc.Channel, version: str) -> None:
    """grpcio's package has the messages of v1alpha only; those of v1 are the same on the wire."""
    ask = reflection_pb2.ServerReflectionRequest
    reflection = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        ask.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [ask(list_services=""), ask(file_containing_symbol="fused_mlp.v1.Inference")]
    listed, described = reflection(iter(requests), timeout=TIMEOUT_S)
    names = {service.name for service in listed.list_services_response.service}
    assert names == {
        "fused_mlp.v1.Inference",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "xds.service.orca.v3.OpenRcaService",
    }
    assert described.file_descriptor_response.file_descriptor_proto


def test_reflection_describes_each_service_and_refuses_what_is_not_there(channel: grpc.Channel) -> None:
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest
    (listed,) = reflection.ServerReflectionInfo(iter([ask(list_services="")]), timeout=TIMEOUT_S)
    for service in listed.list_services_response.service:
        symbol = ask(file_containing_symbol=service.name)
        (described,) = reflection.ServerReflectionInfo(iter([symbol]), timeout=TIMEOUT_S)
        assert described.original_request == symbol
        file, *imported = map(
            FileDescriptorProto.FromString, described.file_descriptor_response.file_descriptor_proto
        )
        assert [each.name for each in imported] == list(file.dependency)
        assert service.name in [f"{file.package}.{each.name}" for each in file.service]
    extension = reflection_pb2.ExtensionRequest(containing_type="fused_mlp.v1.Tensor", extension_number=1)
    refused = [
        ask(file_containing_symbol="nonesuch"),
        ask(file_by_filename="nonesuch.proto"),
        ask(all_extension_numbers_of_type="nonesuch"),
        ask(file_containing_extension=extension),
    ]
    for answer in reflection.ServerReflectionInfo(iter(refused), timeout=TIMEOUT_S):
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    types = ask(all_extension_numbers_of_type="fused_mlp.v1.Tensor")
    (answer,) = reflection.ServerReflectionInfo(iter([types]), timeout=TIMEOUT_S)
    assert list(answer.all_extension_numbers_response.extension_number) == []


async def test_asyncio_client(endpoint: Endpoint) -> None:
    made = credentials(endpoint)
    where = f"localhost:{endpoint.port}"
    async with grpc.aio.secure_channel(where, made) if made else grpc.aio.insecure_channel(where) as channel:
        stub = Stub(channel, fm, "Inference")
        answers = await asyncio.gather(
            *(stub.Predict(request(str(i)), timeout=TIMEOUT_S) for i in range(100))
        )
        assert [answer.request_id for answer in answers] == [str(i) for i in range(100)]

        async def requests() -> AsyncIterator[fm.PredictRequest]:
            for index in range(50):
                yield request(str(index))

        seen = {answer.request_id async for answer in stub.PredictStream(requests(), timeout=TIMEOUT_S)}
        assert seen == {str(index) for index in range(50)}
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Predict(request(model="nonesuch"), timeout=TIMEOUT_S)
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
        call = stub.PredictStream()
        await call.write(request("first"))
        assert (await call.read()).request_id == "first"
        call.cancel()
        assert await call.code() is grpc.StatusCode.CANCELLED
