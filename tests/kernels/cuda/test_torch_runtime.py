"""The one part of TorchRuntime that a machine without a GPU can show: which locks are held when it calls
torch.cuda, whose streams are shared between contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        stream.synchronize()
    assert stream.calls == [("waits for the caller's", True), ("synchronize", True)]
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
    assert stream.calls == [("waits for the caller's", True), ("synchronize", True)]
