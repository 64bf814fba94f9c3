# SPDX-License-Identifier: Apache-2.0
"""One address for several servers, as a Service of Kubernetes is: bytes go through untouched, and a new connection goes
to the server that is current then. Connections that are open stay where they are."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self


class Relay:
    def __init__(self, target: str) -> None:
        self.current = target
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        port = self._server.sockets[0].getsockname()[1]
        self.target = f"127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            to_reader, to_writer = await asyncio.open_connection(*self.current.split(":"))
        except OSError:
            writer.close()
            return
        # Cancelled at the end of a test; Python 3.11 logs an error if the task of a connection ends so.
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side is gone; the other is told by the close
    finally:
        writer.close()
