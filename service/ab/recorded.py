"""A report of real traffic from the service's histograms in Prometheus. Time steps are the blocks of the bootstrap."""

from __future__ import annotations

import json
import re
import time

import numpy as np

from fused_mlp.service.ab.blocks import Array, Buckets
from fused_mlp.service.ab.prometheus_api import Prometheus, PrometheusError
from fused_mlp.service.ab.ratio import per, ratios
from fused_mlp.service.ab.report import Difference, Report, Row, distribution, known, latency_rows
from fused_mlp.service.variant import VARIANTS, Variant

STEPS = 40
SCRAPES_PER_STEP = 4  # with fewer, the increase within a step is mostly extrapolated
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Histograms = dict[Variant, Buckets]


class NothingRecorded(Exception):
    """There is nothing to compare. The text is one line and says what to do."""


def recorded_report(url: str, model: str, since: str) -> Report:
    seconds = _seconds(since)
    now = time.time()
    try:
        step = _step(Prometheus(url, now - seconds, now, seconds), seconds)
        steps = max(1, round(seconds / step))
        source = Prometheus(url, now - step * (steps - 1), now, step)
        return _report(source, model or _only_model(source), since)
    except PrometheusError as error:
        raise NothingRecorded(str(error)) from None


def _step(source: Prometheus, seconds: float) -> float:
    times = source.sample_times("fused_mlp_build_info", "10m")
    if len(times) < 2:
        raise NothingRecorded(f"{source.url} scrapes no fused-mlp now")
    interval = float(np.median(np.diff(times)))
    return max(1.0, round(max(seconds / STEPS, SCRAPES_PER_STEP * interval)))


def _report(source: Prometheus, model: str, since: str) -> Report:
    selector = f"{{model={json.dumps(model)}}}"
    latency = _histograms(source, "fused_mlp_request_duration_seconds", selector)
    for variant in VARIANTS:
        if variant not in latency or latency[variant].total < 1:
            raise NothingRecorded(
                f"{source.url} has no requests of model {model!r} in variant {variant} in the last {since}; "
                "a split sends it some: FUSED_MLP_SPLIT=0.1"
            )
    kernel = _histograms(source, "fused_mlp_compute_duration_seconds", selector)
    rows = latency_rows("latency", latency["fused"], latency["unfused"])
    rows += latency_rows("kernel", kernel["fused"], kernel["unfused"])[:1]
    span = source.steps * source.step_s
    rows.append(Row("answered", "req/s", latency["fused"].total / span, latency["unfused"].total / span))
    cpu = _cpu_row(source, selector)
    notes = [
        "the variants answered different requests: a split gives both the same mix, two deployments may not"
    ]
    if cpu.fused is None or cpu.unfused is None:
        notes.append("CPU per request is not known: this needs a process for each variant")
    medians = {v: _medians(source, latency[v]) for v in VARIANTS}
    return Report(
        title=f"{model}, recorded over {since}",
        facts={
            "source": f"{source.url}, {source.steps} steps of {source.step_s:g} s",
            "latency": "inside the service, from a request's arrival to its answer; between the bounds of the "
            "histogram's buckets it is interpolated",
        },
        rows=(*rows, cpu),
        difference=_difference(source, selector, since),
        problems=(),
        notes=tuple(notes),
        distribution={v: distribution(latency[v]) for v in VARIANTS},
        timeline=medians,
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


def _histograms(source: Prometheus, name: str, selector: str) -> Histograms:
    query = f"sum by (le, variant) (increase({name}_bucket{selector}[{source.step_s:g}s]))"
    cumulative: dict[str, dict[float, Array]] = {}
    for labels, values in source.range(query):
        cumulative.setdefault(labels["variant"], {})[float(labels["le"])] = values
    found: Histograms = {}
    for variant in VARIANTS:
        if by_bound := cumulative.get(variant):
            bounds = sorted(by_bound)
            # Extrapolation may leave a bucket slightly below the one before it.
            counts = np.diff(np.column_stack([by_bound[b] for b in bounds]), axis=1, prepend=0).clip(0)
            found[variant] = Buckets([b for b in bounds if np.isfinite(b)], counts)
    return found


def _medians(source: Prometheus, blocks: Buckets) -> list[tuple[float, float]]:
    single = np.eye(blocks.size)
    medians = [blocks.quantiles([0.5], single[step])[0] for step in range(blocks.size)]
    return [(step * source.step_s, float(m)) for step, m in enumerate(medians) if np.isfinite(m)]


def _cpu_row(source: Prometheus, selector: str) -> Row:
    """Only of processes that served a single variant, such as two deployments side by side."""
    window = f"[{source.step_s:g}s]"
    served: dict[tuple[str, str], dict[str, Array]] = {}
    requests = f"sum by (job, instance, variant) (increase(fused_mlp_requests_total{selector}{window}))"
    for labels, values in source.range(requests):
        served.setdefault((labels.get("job", ""), labels.get("instance", "")), {})[labels["variant"]] = values
    spent = {v: np.zeros(source.steps) for v in VARIANTS}
    answered = {v: np.zeros(source.steps) for v in VARIANTS}
    for labels, values in source.range(f"increase(process_cpu_seconds_total{window})"):
        counts = served.get((labels.get("job", ""), labels.get("instance", "")), {})
        total = sum(float(c.sum()) for c in counts.values())
        for variant in VARIANTS:
            if total and float(counts.get(variant, np.zeros(1)).sum()) > 0.995 * total:
                spent[variant] += values
                answered[variant] += counts[variant]
    if not all(answered[v].sum() for v in VARIANTS):
        return Row("server CPU per request", "s", None, None)
    fused, unfused = (per(spent[v], answered[v]) for v in VARIANTS)
    once = np.ones(source.steps)
    (ratio,) = ratios(fused, unfused, source.steps)
    return Row("server CPU per request", "s", known(fused(once)[0]), known(unfused(once)[0]), ratio)


def _difference(source: Prometheus, selector: str, since: str) -> Difference | None:
    """From the shadow, which runs both variants on the same rows."""
    absolute, relative, rows = (
        max((value for _, value in source.instant(query)), default=0.0)
        for query in (
            f"max(max_over_time(fused_mlp_shadow_max_abs_difference{selector}[{since}]))",
            f"max(max_over_time(fused_mlp_shadow_max_rel_difference{selector}[{since}]))",
            f"sum(fused_mlp_shadow_rows_total{selector})",
        )
    )
    return Difference(absolute, relative, int(rows)) if rows else None
