# SPDX-License-Identifier: Apache-2.0
"""A double of the CUDA runtime for tests on a CPU: streams that only record, graphs that run their body
again on the buffers they were captured with. It refuses what CUDA would refuse or punish: a replay outside
a stream, two batches at once on one stream. What it cannot show is asynchrony: its copies are done when
they return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


class CpuStream:
    def __init__(self) -> None:
        self.busy = threading.Lock()


class CpuMark:
    def __init__(self, runtime: CpuRuntime) -> None:
        self._runtime = runtime

    def wait(self) -> None:
        self._runtime.calls.append("wait")


class CpuGraph:
    def __init__(self, runtime: CpuRuntime, body: Callable[[], None]) -> None:
        self._runtime = runtime
        self._body = body

    def replay(self) -> None:
        assert self._runtime.used() is not None, "replayed outside a stream"
        self._runtime.calls.append("replay")
        self._body()


class CpuRuntime:
    device = torch.device("cpu")

    def __init__(self, seconds: Callable[[Callable[[], None]], float] = lambda body: 1e-6) -> None:
        self.calls: list[str] = []
        self.lost = False
        self._seconds = seconds
        self._thread = threading.local()

    def used(self) -> CpuStream | None:
        return getattr(self._thread, "stream", None)

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self, stream: CpuStream) -> CpuMark:
        assert self.used() is stream, "marked outside of its use"
        return CpuMark(self)

    def settle(self) -> None:
        self.calls.append("settle")

    def release(self) -> None:
        self.calls.append("release")

    def is_lost(self) -> bool:
        return self.lost

    def stream(self) -> CpuStream:
        return CpuStream()

    @contextmanager
    def use(self, stream: CpuStream, *, follow: bool = False) -> Iterator[None]:
        assert stream.busy.acquire(blocking=False), "two threads use one stream at the same time"
        if follow:
            self.calls.append("follow")
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = None
            stream.busy.release()

    def host_buffer(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def capture(self, stream: CpuStream, body: Callable[[], None]) -> CpuGraph:
        self.calls.append("capture")
        body()
        return CpuGraph(self, body)

    def seconds(self, stream: CpuStream, body: Callable[[], None]) -> float:
        return self._seconds(body)
