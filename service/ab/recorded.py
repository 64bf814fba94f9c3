# SPDX-License-Identifier: Apache-2.0
"""A report of real traffic from the service's histograms in Prometheus. Time steps are the blocks of the bootstrap."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

import numpy as np

from fused_mlp.service.ab.bootstrap import Array, Buckets, per, ratios
from fused_mlp.service.ab.prometheus_api import Prometheus, PrometheusError
from fused_mlp.service.ab.report import (
    VARIANT_ARMS,
    Arms,
    Difference,
    Report,
    Row,
    distribution,
    known,
    latency_rows,
)
from fused_mlp.service.policy.arm import parse_arm

STEPS = 40
SCRAPES_PER_STEP = 4  # with fewer, the increase within a step is mostly extrapolated
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Histograms = dict[str, Buckets]  # by arm


class NothingRecorded(Exception):
    """Nothing to compare. The text is one line and says what to do."""


def recorded_report(url: str, model: str, since: str, arms: Arms = VARIANT_ARMS) -> Report:
    """`arms`: variants, or numbers of versions and variants, as in 3/fused."""
    seconds = _seconds(since)
    now = time.time()
    try:
        step = _step(Prometheus(url, now - seconds, now, seconds), seconds)
        steps = max(1, round(seconds / step))
        source = Prometheus(url, now - step * (steps - 1), now, step)
        return _report(source, model or _only_model(source), since, arms)
    except PrometheusError as error:
        raise NothingRecorded(str(error)) from None


def _step(source: Prometheus, seconds: float) -> float:
    times = source.sample_times("fused_mlp_build_info", "10m")
    if len(times) < 2:
        raise NothingRecorded(f"{source.url} does not scrape a fused-mlp server now")
    interval = float(np.median(np.diff(times)))
    return max(1.0, round(max(seconds / STEPS, SCRAPES_PER_STEP * interval)))


def _report(source: Prometheus, model: str, since: str, arms: Arms) -> Report:
    selector = f"{{model={json.dumps(model)}}}"
    latency = _histograms(source, "fused_mlp_request_duration_seconds", selector, arms)
    for arm in arms:
        if arm not in latency or latency[arm].total < 1:
            what = f"in variant {arm}" if arm in VARIANT_ARMS else f"of arm {arm}"
            hint = (
                "a split sends it some: FUSED_MLP_SPLIT=0.1"
                if arm in VARIANT_ARMS
                else (f"a policy sends it some: fused-mlp policy set {model} --arm {arm}=0.1")
            )
            raise NothingRecorded(
                f"{source.url} has no requests of model {model!r} {what} in the last {since}; {hint}"
            )
    kernel = _histograms(source, "fused_mlp_compute_duration_seconds", selector, arms)
    rows = latency_rows("latency", latency[arms[0]], latency[arms[1]])
    rows += latency_rows("kernel", kernel[arms[0]], kernel[arms[1]])[:1]
    span = source.steps * source.step_s
    rows.append(Row("answered", "req/s", latency[arms[0]].total / span, latency[arms[1]].total / span))
    cpu = _cpu_row(source, selector, arms)
    notes = ["the arms answered different requests: a split gives both the same mix, two deployments may not"]
    if cpu.first is None or cpu.second is None:
        notes.append("CPU per request is not known: this needs a process for each arm")
    medians = {arm: _medians(source, latency[arm]) for arm in arms}
    return Report(
        title=f"{model}, recorded over {since}",
        facts={
            "source": f"{source.url}, {source.steps} steps of {source.step_s:g} s",
            "latency": "inside the service, from a request's arrival to its answer; between the bounds of the "
            "histogram's buckets it is interpolated",
        },
        rows=(*rows, cpu),
        # The shadow compares the variants of one version.
        difference=_difference(source, selector, since) if arms == VARIANT_ARMS else None,
        problems=(),
        notes=tuple(notes),
        distribution={arm: distribution(latency[arm]) for arm in arms},
        timeline=medians,
        arms=arms,
    )


def _seconds(since: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", since.strip())
    if match is None or int(match[1]) == 0:
        raise NothingRecorded(f"--since: expected a time such as 30m, 6h or 2d, got {since!r}")
    return float(int(match[1]) * _UNITS[match[2]])


def _only_model(source: Prometheus) -> str:
    names = sorted(labels["model"] for labels, _ in source.instant("count by (model) (fused_mlp_model_info)"))
    if len(names) == 1:
        return names[0]
    raise NothingRecorded(f"there are several models, name one of {', '.join(names)}")


def _of_arm(arm: str, labels: Mapping[str, str]) -> bool:
    version, variant = parse_arm(arm)
    return version in ("", labels.get("version")) and variant in (None, labels.get("variant"))


def _histograms(source: Prometheus, name: str, selector: str, arms: Arms) -> Histograms:
    query = f"sum by (le, version, variant) (increase({name}_bucket{selector}[{source.step_s:g}s]))"
    cumulative: dict[str, dict[float, Array]] = {}
    for labels, values in source.range(query):
        for arm in arms:
            if _of_arm(arm, labels):
                mine, bound = cumulative.setdefault(arm, {}), float(labels["le"])
                mine[bound] = mine[bound] + values if bound in mine else values
    found: Histograms = {}
    for arm in arms:
        if by_bound := cumulative.get(arm):
            bounds = sorted(by_bound)
            # Extrapolation may leave a bucket slightly below the one before it.
            counts = np.diff(np.column_stack([by_bound[b] for b in bounds]), axis=1, prepend=0).clip(0)
            found[arm] = Buckets([b for b in bounds if np.isfinite(b)], counts)
    return found


def _medians(source: Prometheus, blocks: Buckets) -> list[tuple[float, float]]:
    single = np.eye(blocks.size)
    medians = [blocks.quantiles([0.5], single[step])[0] for step in range(blocks.size)]
    return [(step * source.step_s, float(m)) for step, m in enumerate(medians) if np.isfinite(m)]


def _cpu_row(source: Prometheus, selector: str, arms: Arms) -> Row:
    """Uses only processes that served a single arm, such as two deployments side by side."""
    window = f"[{source.step_s:g}s]"
    served: dict[tuple[str, str], dict[str, Array]] = {}
    requests = (
        f"sum by (job, instance, version, variant) (increase(fused_mlp_requests_total{selector}{window}))"
    )
    for labels, values in source.range(requests):
        process = served.setdefault((labels.get("job", ""), labels.get("instance", "")), {})
        arm = next((arm for arm in arms if _of_arm(arm, labels)), "")
        process[arm] = process[arm] + values if arm in process else values
    spent = {arm: np.zeros(source.steps) for arm in arms}
    answered = {arm: np.zeros(source.steps) for arm in arms}
    for labels, values in source.range(f"increase(process_cpu_seconds_total{window})"):
        counts = served.get((labels.get("job", ""), labels.get("instance", "")), {})
        total = sum(float(c.sum()) for c in counts.values())
        for arm in arms:
            if total and float(counts.get(arm, np.zeros(1)).sum()) > 0.995 * total:
                spent[arm] += values
                answered[arm] += counts[arm]
    if not all(answered[arm].sum() for arm in arms):
        return Row("server CPU per request", "s", None, None)
    first, second = (per(spent[arm], answered[arm]) for arm in arms)
    once = np.ones(source.steps)
    (ratio,) = ratios(first, second, source.steps)
    return Row("server CPU per request", "s", known(first(once)[0]), known(second(once)[0]), ratio)


def _difference(source: Prometheus, selector: str, since: str) -> Difference | None:
    """Measured by the shadow, which runs both variants on the same rows."""
    absolute, relative, rows = (
        max((value for _, value in source.instant(query)), default=0.0)
        for query in (
            f"max(max_over_time(fused_mlp_shadow_max_abs_difference{selector}[{since}]))",
            f"max(max_over_time(fused_mlp_shadow_max_rel_difference{selector}[{since}]))",
            f"sum(fused_mlp_shadow_rows_total{selector})",
        )
    )
    return Difference(absolute, relative, int(rows)) if rows else None
