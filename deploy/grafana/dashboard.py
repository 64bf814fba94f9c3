# SPDX-License-Identifier: Apache-2.0
"""What is on the dashboard: `python deploy/grafana/dashboard.py` writes fused-mlp.json. Needs grafana-foundation-sdk
(in the dev extra). A test makes it again and compares; another runs every expression against a live server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from panels import (
    HALF,
    QUARTER,
    SIXTH,
    SOURCE,
    THIRD,
    facts,
    heat,
    lines,
    logarithmic,
    mean,
    number,
    override,
    own_or_default,
    quantile,
    query,
    rate,
    select,
)

SCHEMA_VERSION = 42  # Grafana 12's; the builder's is that of Grafana 9, and migrated whenever it is opened
TARGET = Path(__file__).with_name("fused-mlp.json")
LATENCY = "fused_mlp_request_duration_seconds"
SHADOW = "fused_mlp_shadow_compute_seconds_sum"
EACH = "{{variant}} {{version}}{{instance}}{{job}}"  # what the variable `by` groups by


def speedup(share: float) -> str:
    """Above 1: fused answers faster. Over all jobs chosen: lanes of one process, or processes of one lane each."""
    unfused, fused = (quantile(share, LATENCY, variant=variant) for variant in ("unfused", "fused"))
    return f"{unfused} / {fused}"


def comparison() -> Iterator[Any]:
    same_rows = f"{rate(SHADOW, variant='unfused')} / {rate(SHADOW, variant='fused')}"
    requests = rate("fused_mlp_requests_total")
    yield number("Speed-up at the median", "p50 of unfused over p50 of fused.", "suffix:x", speedup(0.5), 2)
    yield number(
        "Kernel speed-up, same rows", "From the shadow: both on the same batches.", "suffix:x", same_rows, 1
    )
    yield number("Requests", "Answered, by both variants.", "reqps", requests, 1)
    not_ok = f"1 - {rate('fused_mlp_requests_total', code='OK')} / {requests}"
    yield number("Not OK", "Share of requests with a code other than OK.", "percentunit", not_ok, 2)
    yield lines(
        "Request rate", "Requests answered.", "reqps", query(rate("fused_mlp_requests_total", "$by"), EACH)
    )
    quantiles = {f"p{100 * share:.0f}": quantile(share, LATENCY, "$by") for share in (0.5, 0.9, 0.99)}
    yield logarithmic(
        lines(
            "Latency",
            "From a request's arrival to its answer, inside the service. Logarithmic.",
            "s",
            *(query(expr, f"{name} {EACH}") for name, expr in quantiles.items()),
            from_zero=False,
        )
    )
    yield speedup_band()
    yield lines(
        "Queue against compute",
        "Means: how long a request waited for its batch, and how long the kernel call of a batch took.",
        "s",
        query(mean("fused_mlp_queue_duration_seconds", "$by"), f"queue {EACH}"),
        query(mean("fused_mlp_compute_duration_seconds", "$by"), f"compute {EACH}"),
    )


def speedup_band() -> timeseries.Panel:
    """The band is the ratio's own past: as wide as it wandered."""
    band = {
        name: f"quantile_over_time({share}, ({speedup(0.5)})[$band:15s])"
        for name, share in (("low", 0.1), ("high", 0.9))
    }
    panel = lines(
        "Speed-up",
        "p50 of unfused over p50 of fused, and the same of p99; above 1 fused is faster. The band holds the middle "
        "80 % of the p50's ratio over the time chosen above: what moves within it is noise.",
        "suffix:x",
        query(speedup(0.5), "p50"),
        query(speedup(0.99), "p99"),
        *(query(expr, name) for name, expr in band.items()),
    )
    unseen = {"custom.lineWidth": 0, "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False}}
    override(panel, "/^low$/", **unseen, **{"custom.fillOpacity": 0})
    override(panel, "/^high$/", **unseen, **{"custom.fillOpacity": 20, "custom.fillBelowTo": "low"})
    return panel


def load() -> Iterator[Any]:
    rows = "How many rows shared a kernel call; darker is more often."
    yield heat("Rows in a batch, fused", rows, "fused_mlp_batch_rows", "fused")
    yield heat("Rows in a batch, unfused", rows, "fused_mlp_batch_rows", "unfused")
    waiting, most = select("fused_mlp_queue_rows"), 'fused_mlp_queue_capacity_rows{job=~"$job"}'
    filled = f"max by ($by) ({waiting} / on (job, instance) group_left {most})"
    yield lines(
        "Saturation: queue",
        "Rows waiting, of those that may wait; at 100 % requests are refused.",
        "percentunit",
        query(filled, EACH),
        span=QUARTER,
    )
    yield lines(
        "Saturation: in flight, cores",
        "Requests accepted and not yet answered; cores in use by each process.",
        "short",
        query(f"sum by ($by) ({select('fused_mlp_in_flight')})", f"in flight {EACH}"),
        query('rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval])', "cores {{instance}}"),
        span=QUARTER,
    )
    yield lines(
        "Refusals",
        "Requests that never reached a kernel, by reason.",
        "reqps",
        query(rate("fused_mlp_refused_total", "reason, variant"), "{{reason}} {{variant}}"),
        span=QUARTER,
    )
    yield lines(
        "Loads",
        "Versions of all models loaded and unloaded: many unloads mean that there is too little room.",
        "ops",
        query('sum(rate(fused_mlp_loads_total{job=~"$job"}[$__rate_interval]))', "loads"),
        query('sum(rate(fused_mlp_unloads_total{job=~"$job"}[$__rate_interval]))', "unloads"),
        span=QUARTER,
    )


def fleet() -> Iterator[Any]:
    """Of all models: how evenly the replicas are used."""
    each = 'sum by (job, instance) (rate(fused_mlp_requests_total{job=~"$job"}[$__rate_interval]))'
    busy = 'fused_mlp_utilization{job=~"$job"}'
    yield number(
        "Replicas", "Servers that answer scrapes.", "none", 'count(fused_mlp_build_info{job=~"$job"})', 0
    )
    yield number(
        "Spread of requests",
        "Of the replica with the most, over the mean: 1 is even.",
        "suffix:x",
        f"max({each}) / avg({each})",
        2,
    )
    yield number("Utilisation", "Mean of all replicas.", "percentunit", f"avg({busy})", 0)
    hottest = number("Hottest replica", "And its utilisation.", "percentunit", f"topk(1, {busy})", 0)
    hottest.targets([query(f"topk(1, {busy})", "{{instance}}").instant()])
    yield hottest.text_mode(BigValueTextMode.VALUE_AND_NAME)
    yield lines(
        "Utilisation by replica",
        "Share of its cores that a server uses or waits for, plus how full its fullest queue is; and the latter alone.",
        "percentunit",
        query(busy, "{{instance}}"),
        query('fused_mlp_queue_fill{job=~"$job"}', "queue {{instance}}"),
        span=THIRD,
    )
    yield lines(
        "Requests by replica", "Answered, of all models.", "reqps", query(each, "{{instance}}"), span=THIRD
    )
    yield facts(
        "Versions by replica",
        "Versions of the model that can answer, and where.",
        f"max by (instance, version, state) ({select('fused_mlp_model_info')} > 0)",
        (),
        THIRD,
    )


def front() -> Iterator[Any]:
    """Of the native front; the Python front has no such counts."""
    opened = [
        query(f'sum (fused_mlp_front_open_{what}{{job=~"$job"}})', what) for what in ("connections", "calls")
    ]
    yield lines("Open", "Connections and calls open now.", "short", *opened, span=QUARTER)
    yield lines(
        "Begun and ended",
        "Connections and calls begun; connections that ended, by reason: peer and done are the usual ones.",
        "ops",
        query(front_rate("connections"), "connections"),
        query(front_rate("calls"), "calls"),
        query(front_rate("connection_ends", "reason"), "ended: {{reason}}"),
        span=QUARTER,
    )
    yield lines(
        "Refused and reset",
        "Calls that the front itself ended, by code: broken requests, limits, deadlines; streams reset, by sender; TLS "
        "handshakes.",
        "ops",
        query(front_rate("refused_calls", "code"), "{{code}}"),
        query(front_rate("resets", "sender"), "reset by {{sender}}"),
        query(front_rate("failures"), "failed inside the server"),
        query(front_rate("tls_handshakes"), "TLS handshakes"),
        query(front_rate("tls_failures", "reason"), "TLS failed: {{reason}}"),
        query(front_rate("memory_refusals", "account"), "no memory for {{account}}"),
        span=QUARTER,
    )
    traffic = [query(front_rate(f"{what}_bytes"), what) for what in ("received", "sent")]
    yield lines("Traffic", "Bytes of HTTP/2, before TLS.", "Bps", *traffic, span=QUARTER)
    held, limit = (
        f'sum by (account) (fused_mlp_front_memory_{what}{{job=~"$job"}})'
        for what in ("bytes", "limit_bytes")
    )
    yield lines("Memory", "What peers hold, by account.", "bytes", query(held, "{{account}}"), span=HALF)
    yield lines(
        "Budgets", "The same as a share of its budget.", "percentunit",
        query(f"{held} / {limit}", "{{account}}"), span=HALF,
    )  # fmt: skip


def front_rate(counter: str, by: str = "") -> str:
    grouped = f"sum by ({by})" if by else "sum"
    return f'{grouped} (rate(fused_mlp_front_{counter}_total{{job=~"$job"}}[$__rate_interval]))'


def trust() -> Iterator[Any]:
    yield lines(
        "Shadow error",
        "Largest difference of the outputs on the same rows.",
        "sci",
        query(f"max ({select('fused_mlp_shadow_max_rel_difference')})", "relative"),
        query(f"max ({select('fused_mlp_shadow_max_abs_difference')})", "absolute"),
        span=THIRD,
    )
    yield lines(
        "Shadow batches",
        "Batches chosen for the shadow, by what became of them; and those whose outputs disagreed, by verdict.",
        "ops",
        query(rate("fused_mlp_shadow_batches_total", "outcome"), "{{outcome}}"),
        query(rate("fused_mlp_shadow_mismatches_total", "verdict"), "{{verdict}}"),
        span=THIRD,
    )
    yield lines(
        "Policy",
        "Share of requests for the other variant and of batches for the shadow; 100 % where unfused had to take over.",
        "percentunit",
        query(own_or_default("max", "fused_mlp_policy_split_ratio"), "split"),
        query(own_or_default("max", "fused_mlp_policy_shadow_ratio"), "shadow"),
        query(own_or_default("max by (reason)", "fused_mlp_variant_fallback"), "fallback: {{reason}}"),
        span=SIXTH,
    )
    yield lines(
        "Default version",
        "The one that answers requests that name none.",
        "short",
        query(f"max ({select('fused_mlp_default_version')})", "highest"),
        query(f"min ({select('fused_mlp_default_version')})", "lowest"),
        span=SIXTH,
    )
    yield lines(
        "Precision",
        "What weights in fewer bits cost, measured when they were made: a share of a row's largest output.",
        "percentunit",
        query(
            f"max by (version, kind) ({select('fused_mlp_precision_error_ratio')})", "{{version}} {{kind}}"
        ),
        span=SIXTH,
    )
    yield lines(
        "Memory",
        "Of the kernels' weights, and on a GPU of their buffers there.",
        "bytes",
        query(f"max by (version) ({select('fused_mlp_kernel_memory_bytes')})", "{{version}}"),
        query('max(fused_mlp_loaded_bytes{job=~"$job"})', "all models"),
        span=SIXTH,
    )
    yield facts("Kernels", "What runs, and where.", select("fused_mlp_kernel_info"), ("model",), THIRD)
    policies = 'fused_mlp_policy_info{job=~"$job",model=~"$model|"}'
    yield facts("Policies", "What a model's requests get; without a model: by default.", policies, (), SIXTH)
    yield facts("Builds", "What serves.", 'fused_mlp_build_info{job=~"$job"}', ("job",), SIXTH)


def add_variables(made: dashboard.Dashboard) -> None:
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    made.with_variable(
        chosen_from("job", "Job", "label_values(fused_mlp_build_info, job)")
        .include_all(True)
        .multi(True)
        .current(VariableOption(text="All", value="$__all", selected=True))
    )
    made.with_variable(
        chosen_from("model", "Model", 'label_values(fused_mlp_model_info{job=~"$job"}, model)')
    )
    # A comma of a value is written with a backslash.
    made.with_variable(
        dashboard.CustomVariable("by")
        .label("Compare")
        .description("lanes: the variants; arms: those of each version; pods and jobs: those of each")
        .values(r"lanes : variant,arms : variant\, version,pods : variant\, instance,jobs : variant\, job")
        .current(VariableOption(text="lanes", value="variant", selected=True))
    )
    made.with_variable(
        dashboard.CustomVariable("band")
        .label("Band over")
        .values("5m,15m,1h,6h")
        .current(VariableOption(text="15m", value="15m", selected=True))
    )


def chosen_from(name: str, label: str, asked: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(asked)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def render() -> str:
    made = (
        dashboard.Dashboard("fused-mlp: fused against unfused")
        .uid("fused-mlp")
        .tags(["fused-mlp", "inference"])
        .description("Both variants of a model, side by side.")
        .refresh("5s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
    )
    add_variables(made)
    number_of = count(1)
    rows = (
        ("Comparison", comparison()),
        ("Load", load()),
        ("Fleet", fleet()),
        ("Trust", trust()),
        ("Connections", front()),
    )
    for title, panels in rows:
        made.with_row(dashboard.Row(title).id(next(number_of)))
        for panel in panels:
            made.with_panel(panel.id(next(number_of)))
    built = made.build()
    built.schema_version = SCHEMA_VERSION
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
    sys.stdout.write(f"wrote {TARGET.name}\n")
