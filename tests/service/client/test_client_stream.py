# SPDX-License-Identifier: Apache-2.0
"""PredictStream: many in flight, answers matched to inputs, a bounded window, clean ends."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest

from fused_mlp.service.client import AsyncClient, PredictError, Prediction


def inputs(count: int) -> list[np.ndarray]:
    return [np.array([index, 1, 2, 3], np.float32) / 8 for index in range(count)]


def test_answers_are_matched_to_inputs_whatever_their_order(connect, scripted, expected):
    scripted.reorder = 5
    items = list(connect(scripted.target).stream("tiny", inputs(20), request_id="job"))
    assert [item.index for item in items[:5]] == [4, 3, 2, 1, 0]
    assert sorted(item.index for item in items) == list(range(20))
    for item in items:
        assert item.request_id == f"job-{item.index}"
        np.testing.assert_allclose(item.unwrap().output, expected(inputs(20)[item.index]), rtol=1e-6)


def test_inputs_may_be_a_generator_of_rows_of_any_count(connect, scripted):
    rows = (np.ones((count, 4), np.float32) for count in range(1, 6))
    items = {item.index: item for item in connect(scripted.target).stream("tiny", rows)}
    assert [items[index].unwrap().output.shape for index in range(5)] == [(n, 3) for n in range(1, 6)]


def test_no_inputs_give_no_answers(connect, scripted):
    assert list(connect(scripted.target).stream("tiny", [])) == []


def test_one_bad_input_fails_alone(connect, scripted):
    bad = [*inputs(2), np.ones(9, np.float32), *inputs(1)]
    items = {item.index: item for item in connect(scripted.target).stream("tiny", bad)}
    assert [isinstance(items[index].result, Prediction) for index in range(4)] == [True, True, False, True]
    with pytest.raises(PredictError, match="INVALID_ARGUMENT: expected 4 columns, got 9"):
        items[2].unwrap()


def test_the_window_bounds_what_is_sent_and_not_yet_taken(connect, scripted):
    drawn = 0

    def counted():
        nonlocal drawn
        for x in inputs(50):
            drawn += 1
            yield x

    scripted.reorder = 4
    for taken, _ in enumerate(connect(scripted.target).stream("tiny", counted(), window=4)):
        assert drawn <= taken + 4 + 2  # one drawn and waiting for its slot, one slot just freed
    assert drawn == 50
    assert scripted.most_open == 4


def test_a_broken_stream_raises_its_error(connect, scripted, fail):
    fail("UNAVAILABLE", "the server is shutting down")
    with pytest.raises(PredictError, match="UNAVAILABLE: the server is shutting down"):
        list(connect(scripted.target).stream("tiny", inputs(300), window=2))


def test_a_stream_that_ends_with_open_requests_is_an_error(connect, scripted):
    scripted.stream_ends_after = 3
    with pytest.raises(PredictError, match="unanswered"):
        list(connect(scripted.target).stream("tiny", inputs(4)))


def test_an_error_of_the_callers_own_iterable_reaches_the_caller(connect, scripted):
    def failing():
        yield from inputs(3)
        raise LookupError("no more data")

    stream = connect(scripted.target).stream("tiny", failing())
    assert [next(stream).index for _ in range(3)] == [0, 1, 2]  # what was sent before is answered
    with pytest.raises(LookupError, match="no more data"):
        next(stream)


def test_a_caller_may_stop_early(connect, scripted):
    client = connect(scripted.target)
    stream = client.stream("tiny", inputs(500), window=8)
    assert next(stream).index == 0
    stream.close()
    assert client.predict("tiny", inputs(1)[0]).output.shape == (3,)


def test_a_deadline_ends_a_stream(connect, scripted):
    scripted.reorder = 1000  # never enough to answer
    with pytest.raises(PredictError) as caught:
        list(connect(scripted.target).stream("tiny", inputs(10), window=4, timeout_s=0.2))
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_window_of_nothing_is_refused(connect, scripted):
    with pytest.raises(ValueError, match="window of at least 1"):
        list(connect(scripted.target).stream("tiny", inputs(1), window=0))


async def test_asyncio_inputs_may_be_an_async_iterable(scripted):
    async def slowly():
        for x in inputs(3):
            await asyncio.sleep(0)
            yield x

    async with AsyncClient(scripted.target) as client:
        assert sorted([item.index async for item in client.stream("tiny", slowly())]) == [0, 1, 2]


async def test_asyncio_calls_run_concurrently(scripted, expected):
    async with AsyncClient(scripted.target) as client:
        predictions = await asyncio.gather(*(client.predict("tiny", x) for x in inputs(50)))
    for x, prediction in zip(inputs(50), predictions, strict=True):
        np.testing.assert_allclose(prediction.output, expected(x), rtol=1e-6)


async def test_asyncio_cancelling_a_call_leaves_the_client_usable(scripted):
    async with AsyncClient(scripted.target) as client:
        stuck = asyncio.create_task(client.predict("stuck", inputs(1)[0]))
        while not scripted.requests:
            await asyncio.sleep(0)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert (await client.predict("tiny", inputs(1)[0])).output.shape == (3,)


async def test_asyncio_a_broken_stream_leaves_no_task_behind(scripted, fail):
    fail("UNAVAILABLE")
    async with AsyncClient(scripted.target) as client:
        with pytest.raises(PredictError):
            await anext(client.stream("tiny", inputs(300), window=2))
        for _ in range(1000):  # turns of the loop, for the sender to notice
            if asyncio.all_tasks() == {asyncio.current_task()}:
                return
            await asyncio.sleep(0)
    pytest.fail(f"still there: {asyncio.all_tasks()}")
