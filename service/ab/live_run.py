"""A live comparison: both variants of one model on one server, in alternating slices with the same arrival times. Runs
on the caller's thread; the load has sender threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.ab.blocks import Samples
from fused_mlp.service.ab.load import Load, SliceResult
from fused_mlp.service.ab.ratio import Measure, per, ratios
from fused_mlp.service.ab.report import Difference, Report, Row, distribution, latency_rows
from fused_mlp.service.ab.schedule import plan, slice_seconds
from fused_mlp.service.ab.server_cpu import MetricsUnreadable, Reading, ServerCpu
from fused_mlp.service.client import Client, Prediction, VersionInfo
from fused_mlp.service.variant import VARIANTS, Variant

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
    version: VersionInfo
    inputs: NDArray[Any]  # (n, rows, width)
    duration_s: float
    rate: float | None = None  # None: a probe finds one
    metrics_url: str | None = None

    def compare_outputs(self) -> Difference:
        """Raises the server's error if it does not let a request name its variant."""
        fused, unfused = (
            np.concatenate([self._predict(x, variant).output for x in self.inputs]).astype(np.float64)
            for variant in VARIANTS
        )
        apart = np.abs(fused - unfused)
        scale = np.maximum(np.abs(unfused).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return Difference(float(apart.max()), float((apart / scale).max()), len(fused))

    def run(self, progress: Progress) -> Report:
        difference = self.compare_outputs()
        load = Load(self.client, self.model, self.version.version, self.inputs)
        try:
            rate = self.rate or load.automatic_rate()
            cpu, why_no_cpu = self._server_cpu()
            slices = list(plan(self.duration_s, rate))
            results: list[SliceResult] = []
            spent: list[float] = []
            first = last = cpu.first if cpu else Reading(0, 0)
            progress(0, len(slices))
            for planned in slices:
                before = last
                results.append(load.run(planned))
                try:
                    if cpu:
                        last = cpu.read()
                        spent.append(cpu.between(before, last))
                except MetricsUnreadable as error:
                    # The responses are still valid. If the server has stopped, their errors say more.
                    cpu, spent, why_no_cpu = None, [], str(error)
                progress(len(results), len(slices))
        finally:
            load.close()
        sent = sum(len(result.slice.due) for result in results)
        if cpu and last.requests - first.requests < 0.99 * sent:
            spent, why_no_cpu = [], f"{self.metrics_url} is not the metrics port of {self.client.target}"
        notes = [f"CPU per request is not known: {why_no_cpu}"] if why_no_cpu else []
        if cpu and last.requests - first.requests > 1.02 * sent:
            notes.append("the server also answered other clients; its CPU time per request includes theirs")
        return self._report(results, spent, difference, rate, notes)

    def _predict(self, x: NDArray[Any], variant: Variant) -> Prediction:
        return self.client.predict(self.model, x, version=self.version.version, variant=variant)

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
        mine = {v: [r for r in results if r.slice.variant == v] for v in VARIANTS}
        latency = {v: Samples([r.latency_s for r in mine[v]]) for v in VARIANTS}
        kernel = {v: Samples([r.compute_s for r in mine[v]]) for v in VARIANTS}
        rows = latency_rows("latency", latency["fused"], latency["unfused"])
        rows += latency_rows("kernel", kernel["fused"], kernel["unfused"])[:1]
        rows.append(_rate_row(mine))
        rows.append(_cpu_row(results, spent))
        problems, more = _judge(results, rate)
        length = slice_seconds(self.duration_s)
        by_variant = {info.variant: info for info in self.version.kernels}
        return Report(
            title=f"{self.model}/{self.version.version} on {self.client.target}",
            facts={
                "load": f"{rate:g} requests/s of {self.inputs.shape[1]} row(s), open loop, random arrivals; "
                f"{len(mine['fused'])} slices of {length:.2g} s for each variant, in turns",
                "latency": "from the moment a request was due to its answer, client included",
                **{
                    v: f"{k.backend} kernel on {k.device} {k.isa}, "
                    f"{k.threads} thread{'s' if k.threads != 1 else ''}, {k.strategy}"
                    for v, k in by_variant.items()
                },
            },
            rows=tuple(rows),
            difference=difference,
            problems=tuple(problems),
            notes=(*notes, *more),
            distribution={v: distribution(latency[v]) for v in VARIANTS},
            timeline={v: _timeline(mine[v], results, length) for v in VARIANTS},
        )


def _rate_row(mine: dict[Variant, list[SliceResult]]) -> Row:
    """Answers per second. No ratio: in an open loop both variants get the same load."""
    rates = {v: sum(r.answered for r in mine[v]) / sum(r.elapsed_s for r in mine[v]) for v in VARIANTS}
    return Row("answered", "req/s", rates["fused"], rates["unfused"])


def _cpu_row(results: list[SliceResult], spent: list[float]) -> Row:
    if not spent:
        return Row("server CPU per request", "s", None, None)

    def measure(variant: Variant) -> Measure:
        mine = sorted(
            (result.slice.pair, seconds, result.answered)
            for result, seconds in zip(results, spent, strict=True)
            if result.slice.variant == variant
        )
        table = np.array(mine, np.float64)
        return per(table[:, 1], table[:, 2])

    fused, unfused = measure("fused"), measure("unfused")
    pairs = len(results) // 2
    (ratio,) = ratios(fused, unfused, pairs)
    once = np.ones(pairs)
    # A cost below the resolution of the CPU clock is not known.
    costs = [cost if cost > 0 else None for cost in (float(measure(once)[0]) for measure in (fused, unfused))]
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
