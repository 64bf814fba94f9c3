# SPDX-License-Identifier: Apache-2.0
"""Submits rows to the engine for coroutines. Results arrive through one eventfd that the loop watches: one wake-up
answers a whole batch. Lives on the asyncio loop."""

from __future__ import annotations

import asyncio

from fused_mlp.service import _engine
from fused_mlp.service.errors import EngineRefused


class Submitter:
    def __init__(self, engine: _engine.Engine) -> None:
        self._engine = engine
        self._completions = _engine.CompletionQueue()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._completions.fileno(), self._deliver)

    async def run(
        self,
        lane: _engine.Lane,
        data: bytes,
        dtype: _engine.DType,
        rows: int,
        deadline_ns: int,
        *,
        trace_id: int = 0,
        span: _engine.RequestSpan | None = None,
        caller: _engine.Caller | None = None,
    ) -> _engine.TicketResult:
        """Queue rows on a lane and wait for their result, which goes to the span, too. A cancelled waiter cancels its
        ticket."""
        future: asyncio.Future[_engine.TicketResult] = self._loop.create_future()
        ticket = self._engine.submit(
            lane, data, dtype, rows, deadline_ns, future, self._completions, trace_id, caller
        )
        try:
            result = await future
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        if span is not None:
            span.add(result, self._engine.now())
        if result.status is not _engine.Status.ok:
            raise EngineRefused(_engine.grpc_code(result.status), result.detail)
        return result

    def _deliver(self) -> None:
        for result in self._completions.drain():
            if not result.token.done():
                result.token.set_result(result)
