# SPDX-License-Identifier: Apache-2.0
"""Reports from recorded metrics, with a scripted Prometheus; a real one is in tests/e2e."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from fused_mlp.service.ab.recorded import NothingRecorded, recorded_report
from fused_mlp.service.ab.report import Report

BOUNDS = {"fused": ("0.0001", "0.0002", "+Inf"), "unfused": ("0.001", "0.002", "+Inf")}


@dataclass
class Recorded:
    """A Prometheus that scrapes every 15 s. Every step has the increases that a test sets by metric."""

    url: str = ""
    models: list[str] = field(default_factory=lambda: ["digits"])
    # (labels, increase in every step) by the name of the metric
    increases: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def latencies(self, variant: str, requests: float) -> None:
        """All requests between the first bound and the second."""
        for name in ("request_duration", "compute_duration"):
            series = self.increases.setdefault(f"fused_mlp_{name}_seconds_bucket", [])
            for bound, count in zip(BOUNDS[variant], (0.0, requests, requests), strict=True):
                series.append(({"variant": variant, "le": bound}, count))

    def pod(self, instance: str, cpu_s: float, **requests: float) -> None:
        labels = {"job": "j", "instance": instance}
        self.increases.setdefault("process_cpu_seconds_total", []).append((labels, cpu_s))
        for variant, count in requests.items():
            series = self.increases.setdefault("fused_mlp_requests_total", [])
            series.append(({**labels, "variant": variant}, count))

    def answer(self, path: str, query: str, times: list[float]) -> list[object]:
        if "count by (model)" in query:
            return [{"metric": {"model": name}, "value": [0, "1"]} for name in self.models]
        if query.startswith("fused_mlp_build_info["):
            return [{"metric": {}, "values": [[15 * i, "1"] for i in range(5)]}]
        name = re.search(r"(fused_mlp_\w+|process_\w+)", query)[1]
        if path.endswith("query_range"):
            return [
                {"metric": labels, "values": [[at, str(value)] for at in times]}
                for labels, value in self.increases.get(name, [])
            ]
        return [{"metric": {}, "value": [0, str(self.gauges[name])]}] if name in self.gauges else []


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    script = Recorded()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {key: value[0] for key, value in parse_qs(url.query).items()}
            times = []
            if "step" in asked:
                start, end, step = (float(asked[key]) for key in ("start", "end", "step"))
                times = [start + i * step for i in range(round((end - start) / step) + 1)]
            body = json.dumps({"data": {"result": script.answer(url.path, asked["query"], times)}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


def figures(report: Report) -> dict[str, tuple[float | None, float | None]]:
    return {row.name: (row.first, row.second) for row in report.rows}


def test_quantiles_ratio_and_rate_are_those_of_the_histograms(recorded: Recorded) -> None:
    recorded.latencies("fused", 900)
    recorded.latencies("unfused", 90)
    report = recorded_report(recorded.url, "", "1h")
    found = figures(report)
    assert found["latency p50"] == pytest.approx((0.00015, 0.0015))
    assert found["latency p99"] == pytest.approx((0.000199, 0.00199))
    assert found["answered"] == pytest.approx((10, 1))  # in steps of 90 s, which four scrapes fit into
    assert report.rows[0].ratio.value == pytest.approx(10)
    assert report.verdict.startswith("Fused is 10.0x as fast")
    assert report.difference is None


def test_cpu_is_known_where_each_process_served_one_variant(recorded: Recorded) -> None:
    for variant in ("fused", "unfused"):
        recorded.latencies(variant, 100)
    recorded.pod("a", 0.05, fused=1000, unfused=0)
    recorded.pod("b", 0.2, fused=0, unfused=1000)
    recorded.pod("c", 99, fused=500, unfused=500)  # its CPU time cannot be divided between the variants
    report = recorded_report(recorded.url, "digits", "1h")
    assert figures(report)["server CPU per request"] == pytest.approx((50e-6, 200e-6))
    assert len(report.notes) == 1


def test_cpu_of_lanes_in_one_process_is_not_known(recorded: Recorded) -> None:
    for variant in ("fused", "unfused"):
        recorded.latencies(variant, 100)
    recorded.pod("c", 99, fused=500, unfused=500)
    report = recorded_report(recorded.url, "digits", "1h")
    assert figures(report)["server CPU per request"] == (None, None)
    assert any("CPU per request is not known" in note for note in report.notes)


def test_difference_is_what_the_shadow_saw(recorded: Recorded) -> None:
    for variant in ("fused", "unfused"):
        recorded.latencies(variant, 100)
    recorded.gauges = {
        "fused_mlp_shadow_max_abs_difference": 2e-7,
        "fused_mlp_shadow_max_rel_difference": 3e-7,
        "fused_mlp_shadow_rows_total": 1234,
    }
    difference = recorded_report(recorded.url, "digits", "1h").difference
    assert (difference.absolute, difference.relative, difference.rows) == (2e-7, 3e-7, 1234)


def test_what_is_missing_is_named_with_what_to_do(recorded: Recorded) -> None:
    recorded.latencies("fused", 900)
    with pytest.raises(NothingRecorded, match=r"variant unfused in the last 6h; .*FUSED_MLP_SPLIT=0\.1"):
        recorded_report(recorded.url, "digits", "6h")
    recorded.models = ["digits", "ranker"]
    with pytest.raises(NothingRecorded, match="several models, name one of digits, ranker"):
        recorded_report(recorded.url, "", "6h")
