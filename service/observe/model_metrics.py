# SPDX-License-Identifier: Apache-2.0
"""The metrics of models, versions and lanes: their names, help texts and buckets, and the text that a scrape gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter

from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.observe import reading
from fused_mlp.service.observe.exposition import Counter, Family, Gauge, Histogram
from fused_mlp.service.observe.load import LoadMeter
from fused_mlp.service.observe.reading import Scrape

# Buckets of a server with many models. A request's are 2 to 2.5 times apart where small models answer; the others tell
# what to look at. All of them for 2000 lanes would be 28 MB of text.
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


def _lane_histogram(name: str, help_text: str, attribute: str) -> Histogram[Scrape]:
    read = attrgetter(attribute)
    return _histogram(name, help_text, lambda s: ((lane.labels, read(lane.counters)) for lane in s.lanes))


FAMILIES: tuple[Family[Scrape], ...] = (
    _lane_histogram(
        "request_duration_seconds", "From a request's arrival to its answer.", "requests.duration"
    ),
    _lane_histogram("queue_duration_seconds", "From acceptance to the start of the batch.", "queue_duration"),
    _lane_histogram("compute_duration_seconds", "The kernel call of one batch.", "compute_duration"),
    _lane_histogram("batch_rows", "Rows in one batch.", "batch_rows"),
    Counter("fused_mlp_requests", "Requests answered, by gRPC code.", reading.requests),
    Counter(
        "fused_mlp_refused",
        "Requests that never reached a kernel, by reason.",
        reading.lane_counts("refused", "reason"),
    ),
    Counter(
        "fused_mlp_batches",
        "Kernel calls, by what released the batch.",
        reading.lane_counts("batches", "release"),
    ),
    Counter("fused_mlp_rows", "Rows accepted.", lambda s: ((x.labels, x.counters.rows) for x in s.lanes)),
    Counter(
        "fused_mlp_kernel_errors",
        "Batches whose kernel failed.",
        lambda s: ((x.labels, x.counters.kernel_errors) for x in s.lanes if x.counters.kernel_errors),
    ),
    Gauge(
        "fused_mlp_queue_rows",
        "Rows waiting now.",
        reading.queued,
    ),
    Gauge(
        "fused_mlp_queue_capacity_rows",
        "Rows that may wait, of each lane.",
        reading.queue_capacity,
    ),
    Gauge("fused_mlp_queue_fill", "How full the fullest queue is, from 0 to 1.", reading.queue_fill),
    Gauge(
        "fused_mlp_utilization",
        "Share of the usable cores that was in use, or waited for, over the last 5 s, plus fused_mlp_queue_fill.",
        reading.utilization,
    ),
    Gauge(
        "fused_mlp_in_flight",
        "Requests accepted and not yet answered.",
        lambda s: ((x.labels, x.counters.in_flight) for x in s.lanes),
    ),
    Counter(
        "fused_mlp_load_failures",
        "Loads that failed, on demand or of new files. Requests that waited are counted without a version.",
        reading.load_failures,
    ),
    Counter(
        "fused_mlp_loads",
        "Versions loaded, or built anew for another policy.",
        reading.loads,
    ),
    Counter(
        "fused_mlp_unloads",
        "Versions unloaded: to make room, on request, or replaced.",
        reading.unloads,
    ),
    Gauge("fused_mlp_loaded_bytes", "Memory of the kernels of all loaded versions.", reading.loaded_bytes),
    Gauge(
        "fused_mlp_loaded_limit_bytes",
        "The most that they may take, where FUSED_MLP_MAX_LOADED_BYTES is set.",
        reading.loaded_limit,
    ),
    # All that there is of a version without traffic, and short for that reason.
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
        reading.kernel_memory,
    ),
    Gauge("fused_mlp_build_info", "What runs.", reading.builds),
    Counter(
        "fused_mlp_shadow_batches",
        "Batches chosen to be run again on the other variant, by what became of them.",
        reading.shadow_batches,
    ),
    Counter("fused_mlp_shadow_rows", "Rows compared.", lambda s: ((x, seen.rows) for x, seen in s.shadows)),
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
        lambda s: ((x, seen.max_absolute) for x, seen in s.shadows),
    ),
    Gauge(
        "fused_mlp_shadow_max_rel_difference",
        "Largest difference seen, as a part of the outputs' size.",
        lambda s: ((x, seen.max_relative) for x, seen in s.shadows),
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
        reading.version_differences,
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
        lambda s: ((x, policy.weight) for x, policy in s.policies),
    ),
    Gauge(
        "fused_mlp_policy_split_ratio",
        "Share of requests that the other variant answers.",
        lambda s: ((x, policy.split) for x, policy in s.policies),
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
        lambda s: ((x, policy.shadow) for x, policy in s.policies),
    ),
    Gauge(
        "fused_mlp_policy_allow_override",
        "Whether a request may name its variant.",
        lambda s: ((x, int(policy.allow_override)) for x, policy in s.policies),
    ),
    Gauge(
        "fused_mlp_variant_fallback",
        "1 where fused is wanted and unfused serves, by reason.",
        reading.fallbacks,
    ),
)


class ModelMetrics:
    """Makes text, in pieces. `front`: the name of what speaks gRPC. Which buckets histograms have unless a scrape asks
    for others is decided here, once, by how many versions there are."""

    def __init__(
        self, engine: _engine.Engine, catalog: Catalog, meter: LoadMeter, queue_rows: int, front: str
    ) -> None:
        self.engine = engine
        self.catalog = catalog
        self.meter = meter
        self.queue_rows = queue_rows
        self.front = front
        versions = sum(len(model.versions) for model in catalog.models())
        self._usual = "coarse" if versions > MANY_VERSIONS else "fine"

    def text(
        self, names: Collection[str] = (), buckets: str | None = None, *, openmetrics: bool = False
    ) -> Iterator[bytes]:
        """`names`: of the series, or of whole families, that are asked for; none: all. `buckets`: fine or coarse."""
        scrape = Scrape(self, coarse=(buckets or self._usual) == "coarse")
        for family in FAMILIES:
            yield from family.text(scrape, names, openmetrics)
        scrape.free()
