# SPDX-License-Identifier: Apache-2.0
"""The cost of the A/B machinery, measured on one server whose policy is changed between short runs: off, off once more
(how far two that are the same come apart), every request dealt out by turn or by key but almost none to the other
variant, and 1 % of the batches compared. Two processes that are the same differ by more than what is looked for here.
A real split has the cost of the slower variant, which is not measured here."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench.serving.load import LOADS, Load, request_for, verify, warm_up, write_frame
from bench.serving.systems import System, service
from bench.startup import free_port
from fused_mlp.service.ab.bootstrap import Ratio, per, ratios
from fused_mlp.service.client.admin import AdminClient

Samples = dict[str, dict[str, list[dict[str, float]]]]
PLAIN = "off"
SHADOW = "shadow 1 %"
# One request in a million goes to the other variant; all the others are dealt out just the same.
HARDLY = 1e-6
MODEL = "digits"  # the smaller the model, the more of the time is ours
# Outstanding requests (an idle server, a saturated one) and how many a run sends.
RUNS = {1: 400, 128: 10_000}
# The rate depends on which connection meets which thread, and differs by a tenth from run to run. So a
# turn of an arm is many short runs, and a round of the other benchmarks is many turns here.
RUNS_PER_TURN = 10
TURNS_PER_ROUND = 20
# The columns of the table: title, and format of the plain server's mean.
COLUMNS = {
    "rate": ("req/s", "{:,.0f}"),
    "cpu_us": ("CPU", "{:.3f} us"),
    "p50_ms": ("p50", "{:.3f} ms"),
    "p99_ms": ("p99", "{:.3f} ms"),
}


@dataclass(frozen=True)
class Arm:
    """A policy of the measured server, and the headers of its requests."""

    policy: Mapping[str, float] = field(default_factory=dict)
    headers: tuple[str, ...] = ()


ARMS = {
    PLAIN: Arm(),
    "off, once more": Arm(),
    "split on, in turn": Arm({"split": HARDLY}),
    "split on, by x-ab-key": Arm({"split": HARDLY}, ("x-ab-key: user-4711",)),
    SHADOW: Arm({"shadow": 0.01}),
}


def measure_ab(
    repository: Path, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, Any]:
    frame = write_frame(folder / "ab.frame", request_for(MODEL, 1).SerializeToString())
    turns = options.turns or options.rounds * TURNS_PER_ROUND
    samples: Samples = {a: {str(o): [] for o in RUNS} for a in ARMS}
    admin_port = free_port()
    shadow_cpu = server_cpu = 0.0
    chance = random.Random(0)
    with (
        service(PLAIN, repository, options.priority, front="native", admin_port=admin_port) as server,
        AdminClient(f"127.0.0.1:{admin_port}") as admin,
    ):
        verify(server, repository, MODEL, 1)
        for outstanding, requests in RUNS.items():
            said = f"A/B, {outstanding} outstanding"
            for _ in track(range(turns), said, console=console, transient=True):
                for name, arm in chance.sample(list(ARMS.items()), len(ARMS)):
                    load = Load(frame, *LOADS[outstanding], options.priority, headers=arm.headers)
                    admin.set_policy(**{"split": 0.0, "shadow": 0.0, **arm.policy})
                    warm_up(server, load)
                    before = _cpu_seconds(server)
                    samples[name][str(outstanding)].append(_take_turn(server, load, requests))
                    if name == SHADOW:
                        after = _cpu_seconds(server)
                        shadow_cpu += after[0] - before[0]
                        server_cpu += after[1] - before[1]
        batches = {
            outcome: server.metric("fused_mlp_shadow_batches_total", f'outcome="{outcome}"')
            for outcome in ("compared", "skipped", "failed")
        }
    return {
        "model": MODEL,
        "turns": turns,
        "arms": summarize(samples),
        "shadow_batches": batches,
        "shadow_cpu_share": shadow_cpu / server_cpu,
    }


def _take_turn(server: System, load: Load, requests: int) -> dict[str, float]:
    """Many short runs; the latencies from one more, whose log costs the generator a fifth of its speed."""
    cpu = server.cpu_seconds()
    runs = [load.run(server, requests) for _ in range(RUNS_PER_TURN)]
    cpu = server.cpu_seconds() - cpu
    total = sum(count for count, _ in runs)
    times_us = load.latencies_us(server, 2 * requests)
    return {
        "rate": total / sum(count / rate for count, rate in runs),
        "cpu_us": cpu / total * 1e6,
        "p50_ms": float(np.percentile(times_us, 50)) / 1e3,
        "p99_ms": float(np.percentile(times_us, 99)) / 1e3,
    }


def _cpu_seconds(server: System) -> tuple[float, float]:
    """CPU time of the shadow's threads, and of the whole process."""
    return server.thread_cpu_seconds("mlp-shadow"), server.cpu_seconds()


def summarize(samples: Samples) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """By arm, outstanding requests and measure: the mean over the turns, and as a share of the plain server's mean."""

    def one(arm: str, outstanding: str, measure: str) -> dict[str, Any]:
        ours, plain = (np.array([s[measure] for s in samples[name][outstanding]]) for name in (arm, PLAIN))
        ones = np.ones(len(ours))
        (found,) = ratios(per(plain, ones), per(ours, ones), len(ours))
        assert found is not None, f"{arm}: no {measure}"
        return {"mean": float(ours.mean()), "change": [found.value, found.low, found.high]}

    return {
        arm: {
            outstanding: {measure: one(arm, outstanding, measure) for measure in COLUMNS}
            for outstanding in loads
        }
        for arm, loads in samples.items()
    }


def change(result: dict[str, Any], arm: str, outstanding: int, measure: str) -> Ratio:
    """Against the plain server, with a 95 % interval by bootstrap over turns."""
    return Ratio(*result["arms"][arm][str(outstanding)][measure]["change"])


def percent(ratio: Ratio) -> str:
    value, low, high = (100 * (part - 1) for part in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def cost_table(result: dict[str, Any]) -> str:
    columns = [(n, measure) for n in RUNS for measure in COLUMNS]
    titles = " | ".join(f"{n} outstanding: {COLUMNS[measure][0]}" for n, measure in columns)
    lines = [f"| A/B machinery | {titles} |", "|---|" + "---:|" * len(columns)]
    for arm in ARMS:
        cells = []
        for n, measure in columns:
            if arm == PLAIN:
                mean = result["arms"][arm][str(n)][measure]["mean"]
                cells.append(COLUMNS[measure][1].format(mean))
            else:
                cells.append(percent(change(result, arm, n, measure)))
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"{int(count)} {outcome}" for outcome, count in result["shadow_batches"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Change of the mean over {result['turns']} turns of {RUNS_PER_TURN} runs, and its 95 % interval.",
            f"Batches chosen by the shadow: {counts}; its thread took {result['shadow_cpu_share']:.2%} of the "
            "server's CPU time.",
        ]
    )
