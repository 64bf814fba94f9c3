# SPDX-License-Identifier: Apache-2.0
"""grpclib: gRPC on a pure-Python HTTP/2, sharing no code with grpcio or with us."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from fused_mlp.protos import fused_mlp_pb2 as fm
from tests.conformance.conftest import Endpoint
from tests.conformance.test_grpcio import request

SERVICE = "/fused_mlp.v1.Inference/"


@pytest.fixture
async def channel(endpoint: Endpoint) -> AsyncIterator[Channel]:
    context = None
    if endpoint.ca:
        context = ssl.create_default_context(cafile=str(endpoint.ca))
        context.set_alpn_protocols(["h2"])
    opened = Channel("localhost", endpoint.port, ssl=context)
    yield opened
    if opened._protocol is not None:
        # close() leaves the transport to later turns of the loop, which ends before they come.
        opened._protocol.connection._transport.abort()
        await asyncio.sleep(0)
    opened.close()
    await asyncio.sleep(0)


def predict(channel: Channel) -> UnaryUnaryMethod:
    return UnaryUnaryMethod(channel, SERVICE + "Predict", fm.PredictRequest, fm.PredictResponse)


def predict_stream(channel: Channel) -> StreamStreamMethod:
    return StreamStreamMethod(channel, SERVICE + "PredictStream", fm.PredictRequest, fm.PredictResponse)


async def test_unary_small_large_and_many(channel: Channel) -> None:
    assert (await predict(channel)(request("one"), timeout=20)).request_id == "one"
    assert list((await predict(channel)(request("large", 3000), timeout=20)).output.shape) == [3000, 10]
    answers = await asyncio.gather(*(predict(channel)(request(str(i)), timeout=20) for i in range(50)))
    assert [answer.request_id for answer in answers] == [str(i) for i in range(50)]


async def test_handed_over_to_python(channel: Channel) -> None:
    method = UnaryUnaryMethod(channel, SERVICE + "ListModels", fm.ListModelsRequest, fm.ListModelsResponse)
    answer = await method(fm.ListModelsRequest(), timeout=20, metadata={"x-data-bin": b"\x00\xff"})
    assert [model.name for model in answer.models] == ["digits"]


async def test_ping_pong_then_end(channel: Channel) -> None:
    async with predict_stream(channel).open(timeout=20) as stream:
        for index in range(10):
            await stream.send_message(request(str(index)))
            answer = await stream.recv_message()
            assert answer is not None
            assert answer.request_id == str(index)
        await stream.end()
        assert await stream.recv_message() is None


async def test_cancel_after_first_response(channel: Channel) -> None:
    async with predict_stream(channel).open(timeout=20) as stream:
        await stream.send_message(request("first"))
        assert await stream.recv_message() is not None
        await stream.cancel()
    assert (await predict(channel)(request("after"), timeout=20)).request_id == "after"


async def test_errors_carry_code_and_text(channel: Channel) -> None:
    with pytest.raises(GRPCError) as failure:
        await predict(channel)(request(model="no such: 100 % ☃"), timeout=20)
    assert failure.value.status is Status.NOT_FOUND
    assert "100 % ☃" in (failure.value.message or "")
    unknown = UnaryUnaryMethod(channel, "/nonesuch.Service/Method", fm.PredictRequest, fm.PredictResponse)
    with pytest.raises(GRPCError) as failure:
        await unknown(request(), timeout=20)
    assert failure.value.status is Status.UNIMPLEMENTED
