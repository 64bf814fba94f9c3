# SPDX-License-Identifier: Apache-2.0
"""Examples of running the service: a canary, an A/B on live traffic, traces. Each is run as its README says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.examples.running import run, running

PATIENCE_S = 30


@pytest.mark.timing  # it compares latencies of some 30 us
def test_canary_promotes_a_version_as_good_and_takes_back_a_slow_one(tmp_path: Path) -> None:
    printed = run("canary", tmp_path)
    assert re.search(r"ranker to 2: promoted, 1 of the requests", printed)
    assert re.search(r"ranker to 3: rolled back, .* its p(50|90|99) is more than 4 times", printed)
    assert re.search(
        r'fused_mlp_canary_info\{model="ranker",reason="latency",state="rolled_back",to="3"\} 1', printed
    )
    assert "ranker is pinned to version 2" in printed.partition("rolled back")[2]


def test_both_variants_answer_live_traffic_and_are_compared(tmp_path: Path) -> None:
    printed = run("ab_in_deployment", tmp_path)
    (fused, unfused) = re.findall(r"answered by fused: (\d+), unfused: (\d+)", printed)[0]
    assert int(fused) + int(unfused) == 2000
    assert 600 < int(fused) < 1400  # by user, of whom there are 200
    counts = re.findall(r"^request +(\w+) +(\d+) ", printed, re.MULTILINE)
    assert counts == [("fused", fused), ("unfused", unfused)]
    medians = {
        (what, variant): float(us)
        for what, variant, us in re.findall(r"^(\w+) +(\w+) .* ([\d.]+) us median$", printed, re.MULTILINE)
    }
    assert medians["compute", "fused"] < medians["compute", "unfused"]
    assert "kernel p50" in printed  # of the report
    assert re.search(r"Fused is|no difference beyond noise|Not valid", printed)  # its verdict


def test_spans_of_client_and_server_are_one_trace(tmp_path: Path) -> None:
    tree = re.compile(
        r"^trace (\w{32})\n"
        r"  checkout \[shop\] \d+ us\n"
        r"    fused_mlp.v1.Inference/Predict \[shop\] \d+ us\n"
        r"      fused_mlp.v1.Inference/Predict \[fused-mlp\] \d+ us\n"
        r"        queue \[fused-mlp\] \d+ us\n"
        r"        batch \[fused-mlp\] \d+ us\n"
        r"          compute \[fused-mlp\] \d+ us\n",
        re.MULTILINE,
    )
    with running("opentelemetry", tmp_path) as session:
        until = time.monotonic() + PATIENCE_S
        while not (found := tree.search(session.printed())):
            assert time.monotonic() < until, session.printed()
            time.sleep(0.05)  # the server sends its spans by itself
        assert f"trace {found[1]}, digit" in session.printed()
