# SPDX-License-Identifier: Apache-2.0
"""Many requests in flight on one stream: responses come as they finish, not in order, a bounded number at a time.
Ending the iteration early cancels the requests that are still in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

Request = TypeVar("Request")
Response = TypeVar("Response")


async def fan_out(
    requests: AsyncIterator[Request], answer: Callable[[Request], Awaitable[Response]], window: int
) -> AsyncIterator[Response]:
    """`answer` is called for each request, at most `window` at once; reading stops while the window is full."""
    finished: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()
    places = asyncio.Semaphore(window)
    running: set[asyncio.Task[Response]] = set()

    async def read() -> None:
        try:
            async for request in requests:
                await places.acquire()
                task = asyncio.ensure_future(answer(request))
                running.add(task)
                task.add_done_callback(finished.put_nowait)
        finally:
            finished.put_nowait(None)

    reader = asyncio.create_task(read())
    reading = True
    try:
        while reading or running:
            task = await finished.get()
            if task is None:
                reading = False
                await reader  # an error of the stream itself ends it here
                continue
            running.discard(task)
            places.release()
            yield task.result()
    finally:
        for pending in (reader, *running):
            pending.cancel()
        await asyncio.gather(reader, *running, return_exceptions=True)
