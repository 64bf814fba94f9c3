# SPDX-License-Identifier: Apache-2.0
"""Deadlines, cancellation, a full queue and a failing kernel, through a real socket with a kernel that the test
holds back or poisons."""

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.errors import Code
from tests.support.fronts import both_fronts
from tests.support.puppet import POISON, PuppetService


@pytest.fixture
def puppet(front: str) -> Iterator[PuppetService]:
    with PuppetService(front=front, queue_rows=8, max_batch_rows=4) as running:
        yield running


@pytest.fixture
def stub(puppet: PuppetService) -> Iterator[Stub]:
    with grpc.insecure_channel(puppet.target) as channel:
        yield Stub(channel, pb, "Inference")


def request(first: float = 1.0, rows: int = 1) -> pb.PredictRequest:
    x = np.full((rows, 64), first, np.float32)
    return pb.PredictRequest(model="digits", input=pb.Tensor(shape=x.shape, data=x.tobytes()))


@both_fronts
def test_full_queue_refuses_at_once_and_says_when_to_retry(puppet: PuppetService, stub) -> None:
    puppet.hold()
    running = stub.Predict.future(request())
    puppet.wait_entered()
    queued = [stub.Predict.future(request()) for _ in range(8)]
    puppet.wait_for(lambda: puppet.lane().queued_rows == 8)
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request())
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "8 rows" in failure.value.details()
    assert int(dict(failure.value.trailing_metadata())["retry-after-ms"]) >= 1
    puppet.release()
    for call in (running, *queued):
        assert list(call.result(30).output.shape) == [1, 10]
    assert puppet.lane().snapshot().refused["queue_full"] == 1


@both_fronts
def test_expired_request_never_reaches_the_kernel(puppet: PuppetService, stub) -> None:
    puppet.hold()
    running = stub.Predict.future(request(1.0))
    puppet.wait_entered()
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request(2.0), timeout=0.05)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    mate = stub.Predict.future(request(3.0))
    puppet.wait_for(lambda: puppet.lane().queued_rows >= 1)
    puppet.release()
    assert mate.result(30)
    assert running.result(30)
    seen = np.concatenate(puppet.kernel.batches)[:, 0]
    assert sorted(seen) == [1.0, 3.0]


@both_fronts
def test_cancelled_call_does_not_disturb_its_batch_mates(puppet: PuppetService, stub) -> None:
    puppet.hold()
    running = stub.Predict.future(request(1.0))
    puppet.wait_entered()
    mates = [stub.Predict.future(request(value)) for value in (2.0, 3.0, 4.0)]
    puppet.wait_for(lambda: puppet.lane().queued_rows == 3)
    mates[1].cancel()
    puppet.wait_for(lambda: puppet.lane().snapshot().requests.codes.get(Code.CANCELLED) == 1)
    puppet.release()
    for call in (running, mates[0], mates[2]):
        assert list(call.result(30).output.shape) == [1, 10]
    assert 3.0 not in np.concatenate(puppet.kernel.batches)[:, 0]


@both_fronts
def test_kernel_that_throws_fails_its_own_batch_only_and_leaks_nothing(
    puppet: PuppetService, stub, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request(POISON))
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert failure.value.details().startswith("internal error; request id ")
    assert "poisoned" not in failure.value.details()
    assert list(stub.Predict(request()).output.shape) == [1, 10]
    # The formatters of observe/logs.py write it below the line.
    puppet.wait_for(
        lambda: any("the puppet was poisoned" in getattr(each, "traceback", "") for each in caplog.records)
    )


def test_requests_that_wait_share_a_batch(puppet: PuppetService, stub) -> None:
    puppet.hold()
    running = stub.Predict.future(request(1.0))
    puppet.wait_entered()
    queued = [stub.Predict.future(request(float(value))) for value in range(2, 6)]
    puppet.wait_for(lambda: puppet.lane().queued_rows == 4)
    puppet.release()
    assert [call.result(30).timings.batch_rows for call in queued] == [4, 4, 4, 4]
    assert running.result(30).timings.batch_rows == 1


@both_fronts
def test_draining_answers_what_was_accepted_and_refuses_what_comes(puppet: PuppetService, stub) -> None:
    puppet.hold()
    accepted = stub.Predict.future(request())
    puppet.wait_entered()
    puppet.service.engine.begin_drain()
    with pytest.raises(grpc.RpcError) as failure:
        stub.Predict(request())
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    puppet.release()
    assert list(accepted.result(30).output.shape) == [1, 10]


@both_fronts
def test_calls_that_their_client_ends_at_the_deadline_count_as_expired(puppet: PuppetService, stub) -> None:
    """Its own deadline is a little before the one that it sends, and it tells of it by a reset."""
    puppet.hold()
    running = stub.Predict.future(request())
    puppet.wait_entered()
    for _ in range(5):
        with pytest.raises(grpc.RpcError) as failure:
            stub.Predict(request(), timeout=0.05)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    early = stub.Predict.future(request(), timeout=30)
    puppet.wait_for(lambda: puppet.lane().snapshot().in_flight == 7)
    early.cancel()
    stub.ListModels(
        pb.ListModelsRequest(), timeout=30
    )  # on the same connection: its answer follows the reset
    puppet.release()
    assert running.result(30).version == 1
    puppet.wait_for(lambda: sum(puppet.lane().snapshot().requests.codes.values()) == 7)
    codes = puppet.lane().snapshot().requests.codes
    assert codes[Code.DEADLINE_EXCEEDED] == 5
    assert codes[Code.CANCELLED] == 1
