# SPDX-License-Identifier: Apache-2.0
"""Destruction in any order: the process exits cleanly, whatever Python still references or leaves running."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
    import threading
    import numpy as np
    from fused_mlp.service import _engine
    from fused_mlp.service._engine import CompletionQueue, DType, Engine

    entered = threading.Event()
    def double(x, y):
        entered.set()
        y[:] = 2 * x
        return "double"

    engine = Engine(workers=2)
    queue = CompletionQueue()
    lane = engine.add_lane(kernel=double, in_features=1, out_features=1)
    one = np.ones((1, 1), np.float32)
    def send(token=None):
        return engine.submit(lane, one, DType.fp32, 1, 0, token, queue)
"""

ENDINGS = {
    "everything_left_running": """
        for _ in range(100): send()
    """,
    "stopped_twice": """
        send(); engine.stop(); engine.stop()
    """,
    "queue_dropped_before_its_tickets": """
        for i in range(100): send(object())
        del queue
        assert engine.wait_idle(30)
        del engine
    """,
    "engine_dropped_before_its_lane_and_tickets": """
        tickets = [send() for _ in range(100)]
        del engine
        for ticket in tickets: ticket.cancel()
        assert len(queue.drain()) == 100
        print(lane.snapshot().rows, lane.name)
    """,
    "kernel_holds_the_last_reference_to_its_engine": """
        holder = []
        let_go = threading.Event()
        def drop(x, y):
            assert let_go.wait(30)
            holder.clear()
            y[:] = x
            return "drop"
        other = Engine(workers=1)
        holder.append(other)
        watch = CompletionQueue()
        dropping = other.add_lane(kernel=drop, in_features=1, out_features=1)
        other.submit(dropping, one, DType.fp32, 1, 0, None, watch)
        del other
        let_go.set()
        import select
        assert select.select([watch.fileno()], [], [], 30)[0]
    """,
    "submitting_from_a_daemon_thread": """
        def flood():
            while True:
                try: send()
                except _engine.Refused: pass
        threading.Thread(target=flood, daemon=True).start()
        assert entered.wait(30)
    """,
    "error_listener_in_a_cycle_with_its_engine": """
        def listen(name, text, engine=engine): pass
        engine.on_kernel_error = listen
        send()
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_process_ends_cleanly_with(ending):
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(ENDINGS[ending])
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


KEPT_VIEW = """
    kept = []
    def keep(x, y):
        kept.append((x, y))
        y[:] = x
        return "keep"
    lane = engine.add_lane(kernel=keep, in_features=1, out_features=1)
    send()
    assert engine.wait_idle(30)
    del engine, lane, queue
    x, y = kept[0]
    assert x.shape == y.shape == (1, 1)
    print(x.sum(), y.sum())
"""


def test_view_kept_by_a_kernel_outlives_the_engine():
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(KEPT_VIEW)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.0 1.0\n", "")
