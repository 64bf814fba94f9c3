# SPDX-License-Identifier: Apache-2.0
"""Streams: answers as they finish, a bounded number at a time, and nothing left behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fused_mlp.service.fronts.python.fan_out import fan_out


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_answers_come_as_they_finish() -> None:
    first_may_end = asyncio.Event()

    async def answer(number: int) -> int:
        if number == 0:
            await first_may_end.wait()
        elif number == 2:
            first_may_end.set()
        return number

    answers = [number async for number in fan_out(numbers(3), answer, 8)]
    assert sorted(answers) == [0, 1, 2]
    assert answers[-1] == 0


async def test_window_bounds_what_is_in_flight() -> None:
    running = most = 0

    async def answer(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    assert len([number async for number in fan_out(numbers(50), answer, 4)]) == 50
    assert most == 4


async def test_closing_early_cancels_what_runs() -> None:
    cancelled = asyncio.Event()

    async def answer(number: int) -> int:
        if number == 0:
            return number
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return number

    answers = fan_out(numbers(2), answer, 4)
    assert await anext(answers) == 0
    await asyncio.sleep(0)
    await answers.aclose()
    assert cancelled.is_set()


async def test_error_of_the_request_stream_ends_it() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("connection lost")

    async def answer(number: int) -> int:
        return number

    with pytest.raises(RuntimeError, match="connection lost"):
        _ = [number async for number in fan_out(broken(), answer, 4)]
