"""From an awaiting coroutine to the engine and back. Completions come through one eventfd that the loop
watches: one wake-up answers a whole batch. Lives on the asyncio loop."""

from __future__ import annotations

import asyncio

from service import _engine
from service.errors import Cancelled, DeadlineExpired, KernelFailed, Overloaded, ServiceError, ShuttingDown


class Submitter:
    def __init__(self, engine: _engine.Engine) -> None:
        self._engine = engine
        self._completions = _engine.CompletionQueue()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._completions.fileno(), self._deliver)

    def close(self) -> None:
        self._loop.remove_reader(self._completions.fileno())

    async def run(
        self, lane: _engine.Lane, data: bytes, dtype: _engine.DType, rows: int, deadline_ns: int
    ) -> _engine.Completion:
        """Queue rows on a lane and wait for their result. A cancelled waiter cancels its ticket."""
        future: asyncio.Future[_engine.Completion] = self._loop.create_future()
        ticket = self._engine.submit(
            lane, data, dtype=dtype, rows=rows, deadline_ns=deadline_ns, token=future, queue=self._completions
        )
        if isinstance(ticket, _engine.Status):
            raise error_of(ticket, lane)
        try:
            completion = await future
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        if completion.status is not _engine.Status.ok:
            raise error_of(completion.status, lane)
        return completion

    def _deliver(self) -> None:
        for future, completion in self._completions.drain():
            if not future.done():
                future.set_result(completion)


def error_of(status: _engine.Status, lane: _engine.Lane) -> ServiceError:
    """What an engine status means to a caller."""
    match status:
        case _engine.Status.overloaded:
            return Overloaded(f"the queue of {lane.queue_rows} rows is full", lane.retry_after_ms())
        case _engine.Status.deadline_expired:
            return DeadlineExpired("in the queue")
        case _engine.Status.cancelled:
            return Cancelled()
        case _engine.Status.shutting_down:
            return ShuttingDown()
    return KernelFailed(status.name)
