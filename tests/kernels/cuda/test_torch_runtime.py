# SPDX-License-Identifier: Apache-2.0
"""The one part of TorchRuntime that a machine without a GPU can show: which locks are held when it calls
torch.cuda, whose streams are shared between contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from fused_mlp.kernels.cuda.running import runtime
from fused_mlp.kernels.cuda.running.runtime import TorchRuntime


class RecordingStream:
    """Stands for torch.cuda.Stream; notes what was called, and whether its lock was held."""

    cuda_stream = 7

    def __init__(self, *_: object) -> None:
        self.calls: list[tuple[str, bool]] = []

    def note(self, name: str) -> None:
        self.calls.append((name, runtime._STREAM_LOCKS[self.cuda_stream].locked()))

    def wait_stream(self, other: object) -> None:
        self.note(f"waits for {other}")

    def record_event(self) -> RecordingStream:
        self.note("record")
        return self

    def synchronize(self) -> None:
        self.note("synchronize")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> RecordingStream:
    made = RecordingStream()
    current: list[object] = ["the caller's"]

    @contextmanager
    def use(stream: object) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    @contextmanager
    def graph(graph: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # other threads go on serving
        current.append(f"capture {runtime._CAPTURE_LOCK.locked()}")
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", RecordingStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    return made


def test_follow_waits_for_the_callers_stream_under_the_lock(stream: RecordingStream) -> None:
    cuda = TorchRuntime(torch.device("cpu"))
    with cuda.use(stream, follow=True):
        assert torch.cuda.current_stream() is stream
        mark = cuda.mark(stream)
    mark.wait()  # without the lock: others may use the stream meanwhile
    assert stream.calls == [("waits for the caller's", True), ("record", True), ("synchronize", False)]
    stream.calls.clear()
    with cuda.use(stream):
        pass
    assert stream.calls == []


def test_capture_compiles_without_a_lock_and_enqueues_with_one(stream: RecordingStream) -> None:
    ran: list[tuple[object, bool]] = []

    def body() -> None:
        ran.append((torch.cuda.current_stream(), runtime._STREAM_LOCKS[stream.cuda_stream].locked()))

    TorchRuntime(torch.device("cpu")).capture(stream, body)
    assert ran == [("the caller's", False), (stream, True), ("capture True", True)]
    assert stream.calls == [("waits for the caller's", True), ("record", True), ("synchronize", True)]


def test_many_forwards_are_timed_in_one_graph(
    stream: RecordingStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own time between replays is then none of theirs."""
    replayed: list[str] = []

    class Graph:
        def replay(self) -> None:
            replayed.append("replay")

    class Event:
        def record(self) -> None:
            replayed.append("event")

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: object) -> float:
            return 40.0  # ms

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(runtime, "_timing_event", Event)
    ran: list[object] = []
    cuda = TorchRuntime(torch.device("cpu"))
    seconds = cuda.seconds(stream, lambda: ran.append(torch.cuda.current_stream()))
    assert ran.count("capture True") == cuda.TIMED_FORWARDS
    assert seconds == pytest.approx(0.040 / cuda.TIMED_FORWARDS)
    assert replayed[1:] == ["event", "replay", "event"] * cuda.TIMED_RUNS


class CudaError(RuntimeError):
    """As torch.AcceleratorError, which cannot be made in Python with a code."""

    def __init__(self, code: int) -> None:
        super().__init__("CUDA error")
        self.error_code = code


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (None, False),
        (CudaError(700), True),
        (CudaError(2), False),
        (CudaError(900), False),
        (CudaError(906), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("capturing", [False, True])
def test_a_device_is_lost_if_a_stream_fails_for_no_passing_reason(
    error: Exception | None, lost: bool, capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the device would break the recordings of all threads; asking a stream, one on that stream."""

    class Current:
        def query(self) -> bool:
            assert not capturing
            if error is not None:
                raise error
            return False  # not ready

    monkeypatch.setattr(torch.cuda, "synchronize", None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Current())
    assert TorchRuntime(torch.device("cpu")).is_lost() == (lost and not capturing)
