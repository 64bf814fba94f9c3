# SPDX-License-Identifier: Apache-2.0
"""Launch contexts: what one batch in flight needs for itself (streams, static buffers, a graph per
bucket), and a small pool of them, which is what makes a kernel re-entrant. Knows the Runtime seam, not
CUDA."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.cuda.running.program import Program
from fused_mlp.kernels.cuda.running.runtime import Graph, Mark, Runtime
from fused_mlp.models import MlpSpec

# A batch runs in the smallest bucket that holds it. Powers of two waste at most half of the rows, and 16 is the
# smallest tile.
BUCKETS = (16, 32, 64, 128, 256, 512, 1024)
# A larger batch is launched directly, in parts, of which the copies of one run beside the launches of another. Few and
# large: a launch of 1024 rows does not fill a GPU. Their buffers are made with the first such batch.
MAX_ROWS = 8192
MAX_BYTES = 64 << 20  # of inputs or of results
ROWS_TOGETHER = 128  # of the largest tile


class Lane:
    """A stream, and buffers for up to `rows` rows on their way through it. Not thread-safe: one part at a time."""

    def __init__(self, runtime: Runtime, program: Program, spec: MlpSpec, rows: int) -> None:
        self.rows = rows
        self.stream = runtime.stream()
        self._runtime = runtime
        self._program = program
        self._mark: Mark | None = None
        self._results: Float32 | None = None
        # A caller's inference mode ends before these buffers do, and its tensors cannot be written to outside of it.
        with torch.inference_mode(False):
            self._make_buffers(spec)

    def _make_buffers(self, spec: MlpSpec) -> None:
        runtime, rows = self._runtime, self.rows
        self._host_x = runtime.host_buffer((rows, spec.in_features))
        self._host_y = runtime.host_buffer((rows, spec.out_features))
        self._host_arrays = self._host_x.numpy(), self._host_y.numpy()
        self._x = runtime.device_buffer((rows, spec.in_features), torch.float32)
        self._y = runtime.device_buffer((rows, spec.out_features), torch.float32)
        self._workspace = self._program.workspace(rows, runtime.device_buffer)

    @property
    def memory_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self._x, self._y, *self._workspace))

    def forward(self, rows: int) -> Callable[[], None]:
        """Enqueues the forward pass of that many rows. Without the lane in it: a graph that kept its body would keep
        the device's memory in a cycle."""
        program, x, y, workspace = self._program, self._x, self._y, self._workspace
        return lambda: program.enqueue(x, y, rows, workspace)

    def start(self, x: Float32, y: Float32, forward: Callable[[], None]) -> None:
        """`forward` may compute more rows than x has: those hold what an earlier batch left there. Rows do not
        influence each other, and those results are not read."""
        rows = x.shape[0]
        self._host_arrays[0][:rows] = x
        with self._runtime.use(self.stream):
            self._x[:rows].copy_(self._host_x[:rows], non_blocking=True)
            forward()
            self._host_y[:rows].copy_(self._y[:rows], non_blocking=True)
            self._mark = self._runtime.mark(self.stream)
        self._results = y

    def finish(self) -> None:
        """Waits for what was started, if anything was, and hands its results over."""
        if self._mark is None or self._results is None:
            return
        mark, y = self._mark, self._results
        self._mark = self._results = None
        mark.wait()
        y[...] = self._host_arrays[1][: y.shape[0]]

    def abandon(self) -> None:
        """Waits as well, but its results are of a batch that has failed."""
        mark, self._mark, self._results = self._mark, None, None
        if mark is not None:
            with suppress(RuntimeError):
                mark.wait()


class LaunchContext:
    """Not thread-safe: one batch at a time. Graphs hold the addresses of these buffers and of the program's
    weights, so a context belongs to one program for life; another model version has contexts of its own."""

    def __init__(
        self, runtime: Runtime, program: Program, spec: MlpSpec, buckets: tuple[int, ...] = BUCKETS
    ) -> None:
        self.buckets = buckets
        self.runtime = runtime
        self.program = program  # keeps the weights alive as long as the graphs
        self._spec = spec
        self._lane = Lane(runtime, program, spec, buckets[-1])
        self._large: tuple[Lane, ...] = ()
        self._graphs: dict[int, Graph] = {}
        for bucket in buckets:
            self._graphs[bucket] = runtime.capture(self._lane.stream, self._lane.forward(bucket))

    @property
    def memory_bytes(self) -> int:
        """The size of its buffers on the device."""
        return sum(lane.memory_bytes for lane in (self._lane, *self._large))

    def bucket(self, rows: int) -> int:
        return next(bucket for bucket in self.buckets if bucket >= rows)

    def run(self, x: Float32, y: Float32) -> None:
        """x: (rows, in_features), y: (rows, out_features), in host memory."""
        rows = x.shape[0]
        if rows > self.buckets[-1]:
            self._run_in_parts(x, y)
        elif rows:
            self._lane.start(x, y, self._graphs[self.bucket(rows)].replay)
            self._lane.finish()

    def replay_all(self) -> None:
        """Every graph once: what the device does with the first replay only (uploading it) is done before traffic."""
        with self.runtime.use(self._lane.stream):
            for graph in self._graphs.values():
                graph.replay()
            mark = self.runtime.mark(self._lane.stream)
        mark.wait()

    def seconds(self, bucket: int) -> float:
        return self.runtime.seconds(self._lane.stream, self._lane.forward(bucket))

    def _run_in_parts(self, x: Float32, y: Float32) -> None:
        rows = x.shape[0]
        size = self._part_rows(rows)
        if not self._large or self._large[0].rows < size:
            self._large = ()  # frees the smaller ones first
            capacity = size if not self.program.any_rows else 1 << (size - 1).bit_length()
            self._large = tuple(Lane(self.runtime, self.program, self._spec, capacity) for _ in range(2))
            self.runtime.settle()
        try:
            for index, start in enumerate(range(0, rows, size)):
                part = slice(start, start + size)
                lane = self._large[index % 2]
                lane.finish()  # of the part before the last
                count = len(x[part])
                lane.start(
                    x[part], y[part], lane.forward(count if self.program.any_rows else self.bucket(count))
                )
            for lane in self._large:
                lane.finish()
        finally:
            for lane in self._large:
                lane.abandon()

    def _part_rows(self, rows: int) -> int:
        if not self.program.any_rows:
            return self.buckets[-1]
        widest = 4 * max(self._spec.in_features, self._spec.out_features)
        most = max(self.buckets[-1], min(MAX_ROWS, MAX_BYTES // widest))
        count = max(2, -(-rows // most))
        together = -(-rows // (count * ROWS_TOGETHER)) * ROWS_TOGETHER
        return min(together, most)


class ContextPool:
    """Hands a context to one thread at a time; a thread that finds none waits, without the GIL. The most
    recently used one goes first: its buffers are the warmest."""

    def __init__(self, contexts: list[LaunchContext]) -> None:
        self.contexts = tuple(contexts)
        self._free: queue.LifoQueue[LaunchContext] = queue.LifoQueue()
        for context in contexts:
            self._free.put(context)

    @property
    def memory_bytes(self) -> int:
        return sum(context.memory_bytes for context in self.contexts)

    @contextmanager
    def borrow(self) -> Iterator[LaunchContext]:
        context = self._free.get()
        try:
            yield context
        finally:
            self._free.put(context)
