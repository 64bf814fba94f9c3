# SPDX-License-Identifier: Apache-2.0
"""A live comparison: two arms of one model on one server, in alternating slices with the same arrival times. Runs on
the caller's thread; the traffic has sender threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.ab.bootstrap import Measure, Samples, per, ratios
from fused_mlp.service.ab.named_rows import rows_of
from fused_mlp.service.ab.report import (
    QUANTILES,
    VARIANT_ARMS,
    Arms,
    Difference,
    Report,
    Row,
    distribution,
    latency_rows,
)
from fused_mlp.service.ab.server_cpu import MetricsUnreadable, Reading, ServerCpu
from fused_mlp.service.ab.traffic import SliceResult, Traffic, plan, predict, slice_seconds
from fused_mlp.service.client import Client, VersionInfo
from fused_mlp.service.policy.arm import Arm

LATE_S = 0.001
# Above the first share of late sends the client dominates the latencies; above the second it affects p99.
LATE_SHARE_INVALID = 0.05
LATE_SHARE_NOTED = 0.01
FAILED_SHARE_INVALID = 0.01
Progress = Callable[[int, int], None]  # slices done, of how many


@dataclass(frozen=True)
class LiveRun:
    client: Client
    model: str
    arms: tuple[Arm, Arm]  # each with a version number and a variant
    versions: tuple[VersionInfo, VersionInfo]
    inputs: Sequence[Any]  # each (rows, width), or arrays by the names of inputs
    duration_s: float
    rate: float | None = None  # None: a probe chooses one
    metrics_url: str | None = None

    def compare_outputs(self) -> Difference:
        """Raises the server's error if it does not let a request name its arm."""
        first, second = (
            np.concatenate([self._predict(x, arm) for x in self.inputs]).astype(np.float64)
            for arm in self.arms
        )
        apart = np.abs(first - second)
        scale = np.maximum(np.abs(second).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        relative = (apart / scale).max(axis=1)
        largest = float(apart.max()), float(relative.max()), len(first)
        if self.arms[0].version == self.arms[1].version:
            return Difference(*largest)
        found = np.quantile(relative, list(QUANTILES.values()))
        changed = None
        if first.shape[1] > 1:
            changed = int((first.argmax(axis=1) != second.argmax(axis=1)).sum())
        return Difference(*largest, dict(zip(QUANTILES, map(float, found), strict=True)), changed)

    def run(self, progress: Progress) -> Report:
        difference = self.compare_outputs()
        traffic = Traffic(self.client, self.model, self.arms, self.inputs)
        try:
            rate = self.rate or traffic.automatic_rate()
            cpu, why_no_cpu = self._server_cpu()
            slices = list(plan(self.duration_s, rate))
            results: list[SliceResult] = []
            spent: list[float] = []
            first = last = cpu.first if cpu else Reading(0, 0)
            progress(0, len(slices))
            for planned in slices:
                before = last
                results.append(traffic.run(planned))
                try:
                    if cpu:
                        last = cpu.read()
                        spent.append(cpu.between(before, last))
                except MetricsUnreadable as error:
                    # The responses are still valid. If the server has stopped, their errors say more.
                    cpu, spent, why_no_cpu = None, [], str(error)
                progress(len(results), len(slices))
        finally:
            traffic.close()
        sent = sum(len(result.slice.due) for result in results)
        if cpu and last.requests - first.requests < 0.99 * sent:
            spent, why_no_cpu = [], f"{self.metrics_url} is not the metrics port of {self.client.target}"
        notes = [f"CPU per request is not known: {why_no_cpu}"] if why_no_cpu else []
        if cpu and last.requests - first.requests > 1.02 * sent:
            notes.append("the server also answered other clients; its CPU time per request includes theirs")
        return self._report(results, spent, difference, rate, notes)

    def _predict(self, x: Any, arm: Arm) -> NDArray[Any]:
        return predict(self.client, self.model, x, arm).output.reshape(rows_of(x), -1)

    @property
    def _names(self) -> Arms:
        """Labels the arms by variant if the version is the same."""
        first, second = self.arms
        variants = first.version == second.version and (first.variant, second.variant) == VARIANT_ARMS
        return VARIANT_ARMS if variants else (str(first), str(second))

    def _server_cpu(self) -> tuple[ServerCpu | None, str]:
        if self.metrics_url is None:
            return None, "give the server's metrics port with --metrics"
        try:
            return ServerCpu(self.metrics_url), ""
        except MetricsUnreadable as error:
            return None, f"{error}; --metrics names another address"

    def _report(
        self,
        results: list[SliceResult],
        spent: list[float],
        difference: Difference,
        rate: float,
        notes: list[str],
    ) -> Report:
        names = self._names
        mine = [[r for r in results if r.slice.side == side] for side in (0, 1)]
        latency = [Samples([r.latency_s for r in each]) for each in mine]
        kernel = [Samples([r.compute_s for r in each]) for each in mine]
        rows = latency_rows("latency", *latency)
        rows += latency_rows("kernel", *kernel)[:1]
        rows.append(_rate_row(mine))
        rows.append(_cpu_row(results, spent))
        problems, more = _judge(results, rate)
        length = slice_seconds(self.duration_s)
        version = f"/{self.versions[0].version}" if names == VARIANT_ARMS else ""
        kernels = {
            name: next(k for k in info.kernels if k.variant == arm.variant)
            for name, arm, info in zip(names, self.arms, self.versions, strict=True)
        }
        return Report(
            title=f"{self.model}{version} on {self.client.target}",
            facts={
                "load": f"{rate:g} requests/s of {rows_of(self.inputs[0])} row(s), open loop, random arrivals; "
                f"{len(mine[0])} slices of {length:.2g} s for each {'variant' if version else 'arm'}, in turns",
                "latency": "from the moment a request was due to its answer, client included",
                **{
                    v: f"{k.backend} kernel on {k.device} {k.isa}, "
                    f"{k.threads} thread{'s' if k.threads != 1 else ''}, {k.strategy}"
                    for v, k in kernels.items()
                },
            },
            rows=tuple(rows),
            difference=difference,
            problems=tuple(problems),
            notes=(*notes, *more),
            distribution={name: distribution(each) for name, each in zip(names, latency, strict=True)},
            timeline={name: _timeline(each, results, length) for name, each in zip(names, mine, strict=True)},
            arms=names,
        )


def _rate_row(mine: list[list[SliceResult]]) -> Row:
    """Answers per second. Has no ratio: in an open loop both arms get the same load."""
    rates = [sum(r.answered for r in each) / sum(r.elapsed_s for r in each) for each in mine]
    return Row("answered", "req/s", rates[0], rates[1])


def _cpu_row(results: list[SliceResult], spent: list[float]) -> Row:
    if not spent:
        return Row("server CPU per request", "s", None, None)

    def measure(side: int) -> Measure:
        mine = sorted(
            (result.slice.pair, seconds, result.answered)
            for result, seconds in zip(results, spent, strict=True)
            if result.slice.side == side
        )
        table = np.array(mine, np.float64)
        return per(table[:, 1], table[:, 2])

    first, second = measure(0), measure(1)
    pairs = len(results) // 2
    (ratio,) = ratios(first, second, pairs)
    once = np.ones(pairs)
    # A cost below the resolution of the CPU clock is unknown.
    costs = [cost if cost > 0 else None for cost in (float(measure(once)[0]) for measure in (first, second))]
    return Row("server CPU per request", "s", costs[0], costs[1], ratio)


def _judge(results: list[SliceResult], rate: float) -> tuple[list[str], list[str]]:
    """Problems, which make the figures invalid, and notes, which limit them."""
    problems: list[str] = []
    notes: list[str] = []
    sent = sum(len(r.slice.due) for r in results)
    failures: Counter[str] = sum((r.failures for r in results), Counter())
    if failures:
        (text, _), *_ = failures.most_common(1)
        line = f"{failures.total():,} of {sent:,} requests failed, most with {text}"
        (problems if failures.total() > FAILED_SHARE_INVALID * sent else notes).append(line)
    late = sum(int((r.late_s > LATE_S).sum()) for r in results) / max(1, sent)
    line = f"{late:.1%} of the requests of a schedule of {rate:g} req/s were sent more than 1 ms late"
    if late > LATE_SHARE_INVALID:
        problems.append(f"the client could not keep its schedule, {line}; try a lower --rate")
    elif late > LATE_SHARE_NOTED:
        notes.append(f"{line}: p99 is in part the client's own")
    return problems, notes


def _timeline(
    mine: list[SliceResult], all_results: list[SliceResult], length: float
) -> list[tuple[float, float]]:
    position = {id(result): index for index, result in enumerate(all_results)}
    return [(position[id(r)] * length, float(np.median(r.latency_s))) for r in mine if r.answered]
