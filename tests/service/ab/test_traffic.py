# SPDX-License-Identifier: Apache-2.0
"""The open loop: its schedule, and its results with a slow server or a slow client."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from fused_mlp.service.ab.live_run import LiveRun
from fused_mlp.service.ab.traffic import Slice, Traffic, plan
from fused_mlp.service.client import PredictError
from fused_mlp.service.policy.arm import Arm

INPUTS = np.zeros((2, 1, 4), np.float32)

ARMS = (Arm("1", "fused"), Arm("1", "unfused"))


class SlowClient:
    """Answers after a delay, without gRPC, so that only the load is timed."""

    target = "nowhere:1"

    def __init__(self, seconds, refuse_every=0):
        self.seconds = seconds
        self.refuse_every = refuse_every
        self.calls = 0

    def predict(self, model, x, *, version, variant):
        self.calls += 1
        if self.refuse_every and self.calls % self.refuse_every == 0:
            raise PredictError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
        time.sleep(self.seconds)
        output = np.full((len(x), 3), 1.0 if variant == "fused" else 1.5)
        return SimpleNamespace(output=output, timings=SimpleNamespace(compute_us=7.0))


def live_run(client, rate, metrics_url=None, progress=lambda done, total: None):
    kernels = [
        SimpleNamespace(variant=v, backend="b", device="cpu", isa="i", threads=1, strategy="s")
        for v in ("fused", "unfused")
    ]
    version = SimpleNamespace(version=1, kernels=kernels)
    run = LiveRun(
        client, "m", ARMS, (version, version), INPUTS, duration_s=1.6, rate=rate, metrics_url=metrics_url
    )
    return run.run(progress)


def test_both_arms_get_the_same_arrivals_in_turns():
    slices = list(plan(60, 50))
    pairs = list(zip(slices[::2], slices[1::2], strict=True))
    for first, second in pairs:
        assert {first.side, second.side} == {0, 1}
        assert first.pair == second.pair
        assert np.array_equal(first.due, second.due)
        assert np.all(np.diff(first.due) >= 0)
    assert [first.side for first, _ in pairs[:4]] == [0, 1] * 2
    assert sum(len(s.due) for s in slices) == 60 * 50


def test_latency_counts_from_when_a_request_was_due():
    """A stall delays all requests behind it. A closed loop would see one slow request."""
    traffic = Traffic(SlowClient(0.1), "m", ARMS, INPUTS)
    due = np.zeros(3 * 32)  # three for each sender, all at once
    result = traffic.run(Slice(0, 0, due))
    traffic.close()
    rounds = np.sort(result.latency_s).reshape(3, 32).mean(axis=1)
    assert (rounds >= [0.1, 0.2, 0.3]).all()  # more on a busy machine, where sleeping threads wake late


def test_client_that_cannot_keep_up_makes_the_result_invalid():
    report = live_run(SlowClient(0.05), rate=1000)  # 32 senders reach 640
    assert not report.valid
    assert "the client could not keep its schedule" in report.verdict
    assert "try a lower --rate" in report.verdict


def test_refused_requests_are_told():
    report = live_run(SlowClient(0.001, refuse_every=7), rate=100)
    assert not report.valid
    assert "RESOURCE_EXHAUSTED: the queue is full" in report.verdict


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'process_cpu_seconds_total 1.0\nfused_mlp_requests_total{code="OK"} 5.0\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_metrics_that_stop_answering_cost_one_figure_and_nothing_else():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def end_server_after_first_slice(done, total):
        if done == 1:
            server.shutdown()
            server.server_close()

    url = f"http://127.0.0.1:{server.server_port}"
    report = live_run(SlowClient(0.001), rate=50, metrics_url=url, progress=end_server_after_first_slice)
    thread.join()
    # A machine that is busy with other tests may send late, which is told; nothing else is wrong.
    assert all("could not keep its schedule" in problem for problem in report.problems)
    assert any(note.startswith(f"CPU per request is not known: {url}/metrics") for note in report.notes)


def test_difference_is_of_the_same_rows():
    version = SimpleNamespace(version=1, kernels=())
    run = LiveRun(SlowClient(0), "m", ARMS, (version, version), INPUTS, duration_s=2)
    difference = run.compare_outputs()
    assert (difference.absolute, difference.rows) == (0.5, 2)
    assert difference.relative == pytest.approx(0.5 / 1.5)
