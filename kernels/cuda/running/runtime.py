# SPDX-License-Identifier: Apache-2.0
"""The CUDA calls the launcher makes, as a seam: `Runtime` says what they mean, `TorchRuntime` makes them
through torch.cuda. Nothing above this module touches a stream, a graph or an event, so a CPU double can
stand in."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.planning.architectures import Architecture, architecture_of
from fused_mlp.kernels.cuda.running.presence import is_lost

# torch hands out its 32 streams in turn, so two contexts may share one. Work that one of them enqueued while
# the other is being captured would end up in that graph and not run: each stream has a lock, by its handle.
_STREAM_LOCKS: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
# Entering a capture synchronizes the device, which another capture under way would not survive.
_CAPTURE_LOCK = threading.Lock()


class Graph(Protocol):
    """Captured work. It reads and writes the buffers it was captured with, wherever their contents come
    from."""

    def replay(self) -> None:
        """Enqueue the captured work on the current stream."""


class Stream(Protocol):
    """Work on it runs in its order, and beside that of other streams."""


class Mark(Protocol):
    def wait(self) -> None:
        """Until all is done that was on the stream when it was marked; without the GIL."""


class Runtime(Protocol):
    device: torch.device

    def stream(self) -> Stream:
        """A stream beside this thread's own."""

    def current(self) -> AbstractContextManager[object]:
        """Within it, this thread's launches go to this device, on the thread's own stream there."""

    def use(self, stream: Stream, *, follow: bool = False) -> AbstractContextManager[object]:
        """Within it, this thread's copies, launches and replays go to `stream`, and no other thread's do. With
        `follow` they run after all that this thread's own stream holds."""

    def mark(self, stream: Stream) -> Mark:
        """The work that `stream` holds now. To be called where it is in use."""

    def settle(self) -> None:
        """Wait until buffers that were just made can be used on any stream."""

    def release(self) -> None:
        """Return unused memory to the device."""

    def is_lost(self) -> bool:
        """Whether an error has made the device useless to this process until it ends."""

    def host_buffer(self, shape: tuple[int, ...]) -> Tensor:
        """Page-locked float32, so that copies from and to it are asynchronous."""

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeroed memory on the device."""

    def capture(self, stream: Stream, body: Callable[[], None]) -> Graph:
        """Run `body` once for its warm-up (compilation, lazy loading), then record it without running it."""

    def seconds(self, stream: Stream, body: Callable[[], None]) -> float:
        """Time of `body` on the device: the best of a few runs of a graph that holds it many times. (Replays one by
        one from Python would take the time that Python does.)"""


class TorchRuntime:
    """One CUDA device through torch.cuda."""

    TIMED_RUNS = 5
    TIMED_FORWARDS = 20

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def architecture(self) -> Architecture | None:
        major, minor = torch.cuda.get_device_capability(self.device)
        return architecture_of(10 * major + minor)

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device)

    def mark(self, stream: Stream) -> Mark:
        assert isinstance(stream, torch.cuda.Stream)
        return _Event(stream.record_event())

    def settle(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def is_lost(self) -> bool:
        return is_lost(self.device)

    @contextmanager
    def use(self, stream: Stream, *, follow: bool = False) -> Iterator[None]:
        assert isinstance(stream, torch.cuda.Stream)
        with _STREAM_LOCKS[stream.cuda_stream]:
            if follow:  # under the lock too: a wait would become part of another's capture
                stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                yield

    def host_buffer(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, pin_memory=True)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def capture(self, stream: Stream, body: Callable[[], None]) -> Graph:
        assert isinstance(stream, torch.cuda.Stream)
        # First on the loading thread's own stream, where buffers and weights were filled: it may compile for
        # seconds, which must not hold the lock of a stream that others serve on.
        body()
        with self.use(stream, follow=True):
            body()  # what is allocated per stream, such as cuBLAS's workspace
            self.mark(stream).wait()
        graph = torch.cuda.CUDAGraph()
        # thread_local: other versions keep serving (and allocating) on other threads while this one loads.
        with (
            _CAPTURE_LOCK,
            _STREAM_LOCKS[stream.cuda_stream],
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            body()
        return graph

    def seconds(self, stream: Stream, body: Callable[[], None]) -> float:
        def forwards() -> None:
            for _ in range(self.TIMED_FORWARDS):
                body()

        graph = self.capture(stream, forwards)
        best = float("inf")
        with self.use(stream):
            graph.replay()
            for _ in range(self.TIMED_RUNS):
                start, end = _timing_event(), _timing_event()
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                best = min(best, start.elapsed_time(end) * 1e-3 / self.TIMED_FORWARDS)
        return best


class _Event:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
