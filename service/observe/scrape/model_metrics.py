# SPDX-License-Identifier: Apache-2.0
"""The metrics of models, versions and lanes: their names, help texts and buckets, and the text that a scrape gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter

from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.observe.scrape import reading
from fused_mlp.service.observe.scrape.exposition import Counter, Family, Gauge, Histogram
from fused_mlp.service.observe.scrape.reading import (
    Scrape,
    of_lanes,
    of_policies,
    of_shadows,
    of_versions,
    single,
)
from fused_mlp.service.observe.utilisation import LoadMeter

log = logging.getLogger(__name__)

# Buckets on a server with many models. Those of a request are 2 to 2.5 times apart where small models answer; the
# others only show where to look. All buckets for 2000 lanes would be 28 MB of text.
MANY_VERSIONS = 100
COARSE: dict[str, tuple[int, ...]] = {
    "request_duration_seconds": (
        20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 20_000_000, 100_000_000,
        1_000_000_000,
    ),
    "queue_duration_seconds": (100_000, 5_000_000),
    "compute_duration_seconds": (10_000, 100_000, 1_000_000),
    "batch_rows": (1, 16),
    "shadow_compute_seconds": (10_000, 100_000, 1_000_000),
}  # fmt: skip

MILLIONTHS = tuple(round(bound * 1e6) for bound in _engine.DIFFERENCE_BOUNDS)


def _histogram(
    name: str, help_text: str, read: Callable[[Scrape], Iterator[tuple[str, _engine.HistogramSnapshot]]]
) -> Histogram[Scrape]:
    of_rows = name == "batch_rows"
    bounds = _engine.ROW_BOUNDS if of_rows else _engine.DURATION_BOUNDS_NS
    return Histogram(
        f"fused_mlp_{name}",
        help_text,
        bounds=bounds,
        shown=lambda scrape: COARSE[name] if scrape.coarse else bounds,
        decimals=0 if of_rows else 9,
        read=read,
    )


FAMILIES: tuple[Family[Scrape], ...] = (
    _histogram(
        "request_duration_seconds",
        "From a request's arrival to its answer.",
        of_lanes(attrgetter("requests.duration")),
    ),
    _histogram(
        "queue_duration_seconds",
        "From acceptance to the start of the batch.",
        of_lanes(attrgetter("queue_duration")),
    ),
    _histogram(
        "compute_duration_seconds", "The kernel call of one batch.", of_lanes(attrgetter("compute_duration"))
    ),
    _histogram("batch_rows", "Rows in one batch.", of_lanes(attrgetter("batch_rows"))),
    Counter("fused_mlp_requests", "Requests answered, by gRPC code.", reading.requests),
    Counter(
        "fused_mlp_refused",
        "Requests that never reached a kernel, by reason.",
        reading.lane_counts("refused", "reason"),
    ),
    Counter(
        "fused_mlp_refused_ids",
        "Requests refused for an id outside its table or an unknown word, by input.",
        reading.refused_ids,
    ),
    Counter(
        "fused_mlp_batches",
        "Kernel calls, by what released the batch.",
        reading.lane_counts("batches", "release"),
    ),
    Counter("fused_mlp_rows", "Rows accepted.", of_lanes(attrgetter("rows"))),
    Counter(
        "fused_mlp_wasted_rows",
        "Rows computed for callers that were gone: cancelled, or past their deadline.",
        of_lanes(attrgetter("wasted_rows")),
    ),
    Counter(
        "fused_mlp_kernel_errors",
        "Batches whose kernel failed.",
        lambda s: ((x.labels, x.counters.kernel_errors) for x in s.lanes if x.counters.kernel_errors),
    ),
    Counter(
        "fused_mlp_wasted_compute_seconds",
        "Kernel time for rows whose callers were gone when it ended: cancelled, or past their deadline.",
        reading.lane_losses(lambda counters: counters.wasted_ns / 1e9),
    ),
    Counter(
        "fused_mlp_queued_long",
        "Requests that spent more than half of the time until their deadline in the queue.",
        reading.lane_losses(lambda counters: counters.queued_long),
    ),
    Gauge("fused_mlp_queue_rows", "Rows waiting now.", reading.queued),
    Gauge(
        "fused_mlp_queue_capacity_rows",
        "Rows that may wait, of each lane.",
        single(lambda s: s.metrics.queue_rows),
    ),
    Gauge(
        "fused_mlp_queue_fill", "How full the fullest queue is, from 0 to 1.", single(lambda s: s.queue_fill)
    ),
    Gauge(
        "fused_mlp_utilization",
        "Share of the usable cores that was in use, or waited for, over the last 5 s, plus fused_mlp_queue_fill.",
        single(lambda s: s.metrics.meter.load.busy + s.queue_fill),
    ),
    Gauge(
        "fused_mlp_in_flight", "Requests accepted and not yet answered.", of_lanes(attrgetter("in_flight"))
    ),
    Counter(
        "fused_mlp_load_failures",
        "Loads that failed, on demand or of new files. Requests that waited are counted without a version.",
        reading.load_failures,
    ),
    Counter(
        "fused_mlp_loads",
        "Versions loaded, or built anew for another policy.",
        single(lambda s: s.metrics.catalog.load_counts.loads),
    ),
    Counter(
        "fused_mlp_unloads",
        "Versions unloaded: to make room, on request, or replaced.",
        single(lambda s: s.metrics.catalog.load_counts.unloads),
    ),
    Gauge(
        "fused_mlp_loaded_bytes",
        "Memory of the kernels of all loaded versions.",
        single(lambda s: sum(v.memory_bytes for model in s.models for v in model.versions)),
    ),
    Gauge(
        "fused_mlp_loaded_limit_bytes",
        "The most that they may take, where FUSED_MLP_MAX_LOADED_BYTES is set.",
        reading.loaded_limit,
    ),
    # The whole entry of a version without traffic, kept short.
    Gauge("fused_mlp_model_info", "Model versions; 1 when they can answer.", reading.model_infos),
    Gauge("fused_mlp_kernel_info", "Kernels of versions with traffic.", reading.kernel_infos),
    Gauge(
        "fused_mlp_precision_error_ratio",
        "What weights in fewer bits cost versions with traffic, as a share of a row's largest output.",
        reading.precision_errors,
    ),
    Gauge(
        "fused_mlp_kernel_memory_bytes",
        "Weights of the kernels of versions with traffic, and on a GPU their buffers there.",
        of_versions(attrgetter("memory_bytes")),
    ),
    Gauge(
        "fused_mlp_table_bytes",
        "Embedding tables that versions with traffic have open. Versions that share a table both count it.",
        of_versions(lambda v: v.tables.size if v.tables else None),
    ),
    Gauge(
        "fused_mlp_table_resident_bytes",
        "What of these tables is in physical memory.",
        of_versions(lambda v: v.tables.resident if v.tables else None),
    ),
    Gauge("fused_mlp_build_info", "What runs.", reading.builds),
    Counter(
        "fused_mlp_shadow_batches",
        "Batches chosen to be run again on the other variant, by what became of them.",
        reading.shadow_batches,
    ),
    Counter("fused_mlp_shadow_rows", "Rows compared.", of_shadows(attrgetter("rows"))),
    Counter(
        "fused_mlp_shadow_mismatches",
        "Compared batches with a difference over the tolerance, by what float64 says about them.",
        reading.shadow_verdicts,
    ),
    _histogram(
        "shadow_compute_seconds",
        "Each variant on the very same rows: CPU time of one thread, or elapsed on a GPU.",
        reading.shadow_compute,
    ),
    Gauge(
        "fused_mlp_shadow_max_abs_difference",
        "Largest difference seen.",
        of_shadows(attrgetter("max_absolute")),
    ),
    Gauge(
        "fused_mlp_shadow_max_rel_difference",
        "Largest difference seen, as a part of the outputs' size.",
        of_shadows(attrgetter("max_relative")),
    ),
    Counter(
        "fused_mlp_version_shadow_batches",
        "Batches of an arm that were chosen to be run again on an arm of another version.",
        reading.version_batches,
    ),
    Histogram(
        "fused_mlp_version_shadow_difference_ratio",
        "Rows of those batches by the largest difference of their outputs, as a part of the outputs' size.",
        MILLIONTHS,
        lambda _: MILLIONTHS,
        6,
        lambda s: ((x, seen.differences) for x, seen in reading.version_shadows(s)),
    ),
    Counter(
        "fused_mlp_version_shadow_top1_changes",
        "Rows of those batches whose largest output is another one.",
        lambda s: ((x, seen.top1_changes) for x, seen in reading.version_shadows(s)),
    ),
    Gauge(
        "fused_mlp_policy_info",
        "The policy in force, and without a model that of the others.",
        lambda s: (
            (
                f'{x},on_mismatch="{policy.on_mismatch}",precision="{policy.precision}",variant="{policy.variant}"',
                1,
            )
            for x, policy in s.policies
        ),
    ),
    Gauge(
        "fused_mlp_policy_weight",
        "A model's share of the time, relative to others that have work.",
        of_policies(attrgetter("weight")),
    ),
    Gauge(
        "fused_mlp_policy_split_ratio",
        "Share of requests that the other variant answers.",
        of_policies(attrgetter("split")),
    ),
    Gauge(
        "fused_mlp_policy_arm_ratio",
        "Share of the requests that name no version which an arm answers.",
        reading.arm_shares,
    ),
    Gauge(
        "fused_mlp_default_version",
        "The version that answers requests that name none.",
        reading.default_versions,
    ),
    Gauge(
        "fused_mlp_policy_unknown",
        "1 where a policy names a version that is not there or cannot answer, by the field that does.",
        reading.unknown,
    ),
    Gauge(
        "fused_mlp_canary_info",
        "The last canary of a model: running, promoted or rolled_back, and why.",
        reading.canaries,
    ),
    Gauge(
        "fused_mlp_policy_shadow_ratio",
        "Share of batches run again on the other variant.",
        of_policies(attrgetter("shadow")),
    ),
    Gauge(
        "fused_mlp_policy_allow_override",
        "Whether a request may name its variant.",
        of_policies(lambda policy: int(policy.allow_override)),
    ),
    Gauge(
        "fused_mlp_variant_fallback",
        "1 where fused is wanted and unfused serves, by reason.",
        reading.fallbacks,
    ),
)


class ModelMetrics:
    """Makes the text in pieces. `front`: the name of the gRPC implementation. The default buckets of histograms are
    chosen here, once, by the number of versions."""

    def __init__(
        self, engine: _engine.Engine, catalog: Catalog, meter: LoadMeter, queue_rows: int, front: str
    ) -> None:
        self.engine = engine
        self.catalog: Catalog = catalog
        self.meter: LoadMeter = meter
        self.queue_rows: int = queue_rows
        self.front = front
        versions = sum(len(model.versions) for model in catalog.models())
        self._usual = "coarse" if versions > MANY_VERSIONS else "fine"

    def text(
        self, names: Collection[str] = (), buckets: str | None = None, *, openmetrics: bool = False
    ) -> Iterator[bytes]:
        """`names`: of the series, or of whole families, that are asked for; none: all. `buckets`: fine or coarse."""
        scrape = Scrape(self, coarse=(buckets or self._usual) == "coarse")
        for family in FAMILIES:
            try:
                yield from family.text(scrape, names, openmetrics)
            except Exception:  # one family is missing from the page, not all
                log.exception("%s could not be read; it is missing from this scrape", family.name)
        scrape.free()
