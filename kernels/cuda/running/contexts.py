"""Launch contexts: what one batch in flight needs for itself (a stream, static buffers, a graph per
bucket), and a small pool of them, which is what makes a kernel re-entrant. Knows the Runtime seam, not
CUDA."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.runtime import Graph, Runtime
from fused_mlp.models import MlpSpec

# A batch runs in the smallest bucket that holds it; a larger one in slices of the last. Powers of two waste
# at most half of the rows, and 16 is the smallest tile.
BUCKETS = (16, 32, 64, 128, 256, 512, 1024)


class LaunchContext:
    """Not thread-safe: one batch at a time. Graphs hold the addresses of these buffers and of the program's
    weights, so a context belongs to one program for life; another model version has contexts of its own."""

    def __init__(
        self, runtime: Runtime, program: Program, spec: MlpSpec, buckets: tuple[int, ...] = BUCKETS
    ) -> None:
        self.buckets = buckets
        self._runtime = runtime
        self._program = program  # keeps the weights alive as long as the graphs
        self._stream = runtime.stream()
        rows = buckets[-1]
        self._host_x = runtime.host_buffer((rows, spec.in_features))
        self._host_y = runtime.host_buffer((rows, spec.out_features))
        self._host_arrays = self._host_x.numpy(), self._host_y.numpy()
        self._x = runtime.device_buffer((rows, spec.in_features), torch.float32)
        self._y = runtime.device_buffer((rows, spec.out_features), torch.float32)
        workspace = program.workspace(rows, runtime.device_buffer)
        self._graphs: dict[int, Graph] = {}
        for bucket in buckets:
            body = _forward(program, self._x, self._y, bucket, workspace)
            self._graphs[bucket] = runtime.capture(self._stream, body)

    def bucket(self, rows: int) -> int:
        return next(bucket for bucket in self.buckets if bucket >= rows)

    def run(self, x: Float32, y: Float32) -> None:
        """x: (rows, in_features), y: (rows, out_features), in host memory. Rows of a bucket beyond the
        batch hold what an earlier batch left there: rows do not influence each other, and those results are
        not read."""
        host_x, host_y = self._host_arrays
        for start, rows in self._slices(x.shape[0]):
            host_x[:rows] = x[start : start + rows]
            with self._runtime.use(self._stream):
                self._x[:rows].copy_(self._host_x[:rows], non_blocking=True)
                self._graphs[self.bucket(rows)].replay()
                self._host_y[:rows].copy_(self._y[:rows], non_blocking=True)
                self._stream.synchronize()
            y[start : start + rows] = host_y[:rows]

    def run_on_device(self, x: Tensor, y: Tensor) -> None:
        """The same for tensors already on the device, of any float dtype and strides."""
        with self._runtime.use(self._stream, follow=True):
            for start, rows in self._slices(x.shape[0]):
                self._x[:rows].copy_(x[start : start + rows])
                self._graphs[self.bucket(rows)].replay()
                y[start : start + rows].copy_(self._y[:rows])
            self._stream.synchronize()

    def seconds(self, bucket: int) -> float:
        return self._runtime.seconds_per_replay(self._stream, self._graphs[bucket])

    def _slices(self, rows: int) -> Iterator[tuple[int, int]]:
        largest = self.buckets[-1]
        for start in range(0, rows, largest):
            yield start, min(largest, rows - start)


def _forward(
    program: Program, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]
) -> Callable[[], None]:
    """Without the context in it: a graph that kept its body would keep the device's memory in a cycle."""
    return lambda: program.enqueue(x, y, rows, workspace)


class ContextPool:
    """Hands a context to one thread at a time; a thread that finds none waits, without the GIL. The most
    recently used one goes first: its buffers are the warmest."""

    def __init__(self, contexts: list[LaunchContext]) -> None:
        self._free: queue.LifoQueue[LaunchContext] = queue.LifoQueue()
        for context in contexts:
            self._free.put(context)

    @contextmanager
    def borrow(self) -> Iterator[LaunchContext]:
        context = self._free.get()
        try:
            yield context
        finally:
            self._free.put(context)
