# SPDX-License-Identifier: Apache-2.0
"""The engine through its Python module: submit, complete, refuse, fail, drain. The forming of batches is tested
in C++ (service/csrc/engine/tests)."""

from __future__ import annotations

import asyncio
import gc
import select
import threading
import weakref

import numpy as np
import pytest

from fused_mlp.service import _engine
from fused_mlp.service._engine import CompletionQueue, DType, Engine, Status

WIDTH = 4
PATIENCE_S = 30.0


class PuppetKernel:
    """y = 2 * the first two columns of x; waits while held, fails when told to."""

    def __init__(self) -> None:
        self.may_run = threading.Event()
        self.may_run.set()
        self.running = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None

    def __call__(self, x: np.ndarray, y: np.ndarray) -> str:
        self.batches.append(x.shape[0])
        self.running.set()
        assert self.may_run.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        y[:] = 2 * x[:, :2]
        return "puppet"

    def hold(self) -> None:
        self.may_run.clear()


@pytest.fixture
def engine():
    engine = Engine(workers=1)
    yield engine
    engine.stop()


def add_lane(engine: Engine, kernel: object, **options: object) -> _engine.Lane:
    return engine.add_lane(kernel=kernel, in_features=WIDTH, out_features=2, name="m/1/unfused", **options)


def rows(count: int, start: float = 0.0) -> np.ndarray:
    return (np.arange(count * WIDTH, dtype=np.float32) + start).reshape(count, WIDTH)


def submit(engine, lane, queue, x, token=None, deadline_ns=0):
    return engine.submit(lane, x.tobytes(), DType.fp32, len(x), deadline_ns, token, queue)


def wait_for(queue: CompletionQueue, count: int = 1) -> list[_engine.TicketResult]:
    done: list[_engine.TicketResult] = []
    while len(done) < count:
        assert select.select([queue.fileno()], [], [], PATIENCE_S)[0], "no result arrived"
        done += queue.drain()
    return done


def test_rows_come_back_with_token_strategy_and_timings(engine):
    lane, queue, x = add_lane(engine, PuppetKernel()), CompletionQueue(), rows(3)
    submit(engine, lane, queue, x, token="mine")
    (done,) = wait_for(queue)
    assert (done.token, done.status, done.strategy, done.rows) == ("mine", Status.ok, "puppet", 3)
    assert done.batch_rows == 3
    assert done.compute_ns > 0
    np.testing.assert_array_equal(np.frombuffer(done.data, np.float32).reshape(3, 2), 2 * x[:, :2])


@pytest.mark.parametrize(("dtype", "numpy_dtype"), [(DType.fp16, np.float16), (DType.fp64, np.float64)])
def test_output_has_the_dtype_of_the_request(engine, dtype, numpy_dtype):
    lane, queue = add_lane(engine, PuppetKernel()), CompletionQueue()
    x = rows(2).astype(numpy_dtype)
    engine.submit(lane, x, dtype, 2, 0, None, queue)
    (done,) = wait_for(queue)
    result = np.frombuffer(done.data, numpy_dtype).reshape(2, 2)
    np.testing.assert_array_equal(result, 2 * x[:, :2])  # small integers: exact in every dtype


def test_asyncio_loop_receives_results(engine):
    lane, queue = add_lane(engine, PuppetKernel()), CompletionQueue()

    def deliver() -> None:
        for done in queue.drain():
            done.token.set_result(done.data)

    async def call() -> list[bytes]:
        loop = asyncio.get_running_loop()
        loop.add_reader(queue.fileno(), deliver)
        futures = [loop.create_future() for _ in range(50)]
        for i, future in enumerate(futures):
            submit(engine, lane, queue, rows(1, i), token=future)
        return await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)

    answers = [np.frombuffer(data, np.float32) for data in asyncio.run(call())]
    for i, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, [2.0 * i, 2.0 * (i + 1)])


def test_cancelled_ticket_is_dropped_and_its_mates_are_served(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel)
    kernel.hold()
    submit(engine, lane, queue, rows(1), token="first")
    assert kernel.running.wait(PATIENCE_S)
    submit(engine, lane, queue, rows(1), token="gone").cancel()
    submit(engine, lane, queue, rows(1), token="mate")
    kernel.may_run.set()
    status = {done.token: done.status for done in wait_for(queue, 3)}
    assert status == {"first": Status.ok, "gone": Status.cancelled, "mate": Status.ok}
    assert kernel.batches == [1, 1]
    assert lane.snapshot().refused["cancelled"] == 1


def test_expired_ticket_never_reaches_the_kernel():
    clock, kernel, queue = _engine.ManualClock(), PuppetKernel(), CompletionQueue()
    engine = Engine(workers=1, clock=clock)
    lane = add_lane(engine, kernel)
    kernel.hold()
    submit(engine, lane, queue, rows(1), token="first")
    assert kernel.running.wait(PATIENCE_S)
    submit(engine, lane, queue, rows(1), token="late", deadline_ns=engine.now() + 1000)
    clock.advance(1000)
    kernel.may_run.set()
    done = {c.token: c for c in wait_for(queue, 2)}
    assert done["late"].status is Status.deadline_expired
    assert done["late"].data is None
    assert "deadline" in done["late"].detail
    assert kernel.batches == [1]
    with pytest.raises(_engine.Refused) as refused:
        submit(engine, lane, queue, rows(1), deadline_ns=engine.now())
    assert refused.value.status is Status.deadline_expired
    engine.stop()


def test_full_queue_refuses_at_once_and_says_when_to_retry(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel, queue_rows=2)
    kernel.hold()
    submit(engine, lane, queue, rows(1))
    assert kernel.running.wait(PATIENCE_S)
    submit(engine, lane, queue, rows(2))
    with pytest.raises(_engine.Refused, match="2 of 2 rows") as refused:
        submit(engine, lane, queue, rows(1))
    assert refused.value.status is Status.overloaded
    assert 1 <= refused.value.retry_after_ms <= 1000
    kernel.may_run.set()
    wait_for(queue, 2)
    submit(engine, lane, queue, rows(1))
    assert wait_for(queue)[0].status is Status.ok


def test_failing_kernel_fails_its_batch_and_logs_the_traceback(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel)
    reports: list[tuple[str, str]] = []
    engine.on_kernel_error = lambda name, text: reports.append((name, text))
    kernel.error = ValueError("a secret of the server")
    submit(engine, lane, queue, rows(1))
    (done,) = wait_for(queue)
    assert done.status is Status.kernel_error
    assert "secret" not in done.detail
    assert engine.wait_idle(PATIENCE_S)
    ((name, text),) = reports
    assert name == "m/1/unfused"
    assert "Traceback" in text
    assert "a secret of the server" in text
    kernel.error = None
    submit(engine, lane, queue, rows(1))
    assert wait_for(queue)[0].status is Status.ok
    assert lane.snapshot().kernel_errors == 1


def test_kernel_that_always_fails_is_reported_at_a_bounded_rate(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel, max_batch_rows=1)
    kernel.error = ValueError("always")
    reports: list[str] = []
    engine.on_kernel_error = lambda _, text: reports.append(text)
    for _ in range(40):
        submit(engine, lane, queue, rows(1))
    assert len(wait_for(queue, 40)) == 40
    assert engine.wait_idle(PATIENCE_S)
    # Ten a second; on a loaded machine the forty may take two or three seconds.
    assert 10 <= len(reports) < 40


def test_buffer_of_the_wrong_size_is_refused(engine):
    lane, queue = add_lane(engine, PuppetKernel()), CompletionQueue()
    for data, count in [(b"", 1), (b"\0" * 15, 1), (b"\0" * 16, 2), (b"\0" * 16, 0)]:
        with pytest.raises(_engine.Refused) as refused:
            engine.submit(lane, data, DType.fp32, count, 0, None, queue)
        assert refused.value.status is Status.invalid_input
    with pytest.raises(TypeError):
        engine.submit(lane, "text", DType.fp32, 1, 0, None, queue)


def test_drain_answers_what_was_accepted_and_refuses_the_rest(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel, max_wait_us=60_000_000)
    for _ in range(3):
        submit(engine, lane, queue, rows(1))
    assert not engine.wait_idle(0.0)
    engine.begin_drain()
    assert engine.wait_idle(PATIENCE_S)
    assert [c.status for c in queue.drain()] == [Status.ok] * 3
    with pytest.raises(_engine.Refused) as refused:
        submit(engine, lane, queue, rows(1))
    assert refused.value.status is Status.shutting_down
    assert lane.snapshot().refused["draining"] == 1


def test_stop_completes_what_is_queued_as_shutting_down(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    lane = add_lane(engine, kernel)
    kernel.hold()
    submit(engine, lane, queue, rows(1), token="running")
    assert kernel.running.wait(PATIENCE_S)
    submit(engine, lane, queue, rows(1), token="queued")
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    (queued,) = wait_for(queue)
    assert (queued.token, queued.status) == ("queued", Status.shutting_down)
    kernel.may_run.set()
    stopper.join(PATIENCE_S)
    assert [c.token for c in queue.drain()] == ["running"]


def test_removed_lane_answers_its_queue_and_frees_its_kernel(engine):
    kernel, queue = PuppetKernel(), CompletionQueue()
    freed = weakref.ref(kernel)
    lane = add_lane(engine, kernel)
    kernel.hold()
    may_run = kernel.may_run
    submit(engine, lane, queue, rows(1))
    assert kernel.running.wait(PATIENCE_S)
    submit(engine, lane, queue, rows(1))
    engine.remove_lane(lane)
    del kernel, lane
    may_run.set()
    assert [c.status for c in wait_for(queue, 2)] == [Status.ok, Status.ok]
    assert engine.wait_idle(PATIENCE_S)
    gc.collect()
    assert freed() is None


def test_metrics_add_up(engine):
    lane, queue = add_lane(engine, PuppetKernel()), CompletionQueue()
    for count in (1, 2, 3):
        submit(engine, lane, queue, rows(count))
        wait_for(queue)
        lane.record(0, 7_000)
    lane.record(3, 1_000_000)
    lane.refuse_invalid()
    engine.record_unrouted(5, 10_000)
    metrics = lane.snapshot()
    assert metrics.rows == 6
    assert metrics.requests.codes == {0: 3, 3: 1}
    assert metrics.requests.duration.count == 4
    assert metrics.requests.duration.sum == 1_021_000
    seven_us = next(i for i, bound in enumerate(_engine.DURATION_BOUNDS_NS) if bound >= 7_000)
    assert metrics.requests.duration.buckets[seven_us] == 3
    assert metrics.batch_rows.sum == 6
    assert metrics.batches == {"full": 0, "idle": 3, "wait": 0}
    assert metrics.queue_duration.count == metrics.compute_duration.count == 3
    assert metrics.refused == {
        "invalid_input": 1, "queue_full": 0, "deadline": 0, "cancelled": 0, "draining": 0,
    }  # fmt: skip
    assert (lane.queued_rows, metrics.in_flight) == (0, 0)
    assert engine.unrouted().codes == {5: 1}
    assert len(metrics.batch_rows.buckets) == len(_engine.ROW_BOUNDS) + 1


def test_lane_options_that_make_no_sense_are_refused(engine):
    for wrong in ({"max_batch_rows": 0}, {"queue_rows": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            add_lane(engine, PuppetKernel(), **wrong)
    with pytest.raises(TypeError, match="callable"):
        add_lane(engine, object())
    with pytest.raises(ValueError, match="worker"):
        add_lane(Engine(workers=0), PuppetKernel())
