"""The metrics of models, versions and lanes, read from the engine's atomics at each scrape. Labels come only from what
is served, never from what a client sent. A model has one series until it has counted something: most of ten thousand
models have nothing to tell."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from operator import attrgetter

from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.ledger import ModelCounters
from fused_mlp.service.catalog.records import REASONS, ServedModel, ServedVersion
from fused_mlp.service.errors import Code
from fused_mlp.service.observe.exposition import PER_PIECE, Counter, Family, Gauge, Histogram, label_text
from fused_mlp.service.observe.load import LoadMeter, queue_fill
from fused_mlp.service.settings.policy import Policy

# The model of series that belong to none: requests that named no model we serve, and what holds for those without
# series of their own.
NO_MODEL = label_text(model="")

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


@dataclass(frozen=True)
class LaneSample:
    labels: str
    counters: _engine.LaneSnapshot


class Scrape:
    """What one scrape has read so far: nothing is read before a family needs it."""

    def __init__(self, metrics: ModelMetrics, coarse: bool) -> None:
        self.metrics = metrics
        self.coarse = coarse
        self.default_policy = metrics.catalog.default_policy

    @cached_property
    def models(self) -> list[ServedModel]:
        return self.metrics.catalog.models()

    @cached_property
    def used(self) -> list[ServedVersion]:
        versions = [v for model in self.models for v in model.versions]
        return [v for v in versions if any(lane.used for lane in v.lanes.values())]

    @cached_property
    def queue_fill(self) -> float:
        return queue_fill(self.used, self.metrics.queue_rows)

    @cached_property
    def counters(self) -> list[tuple[str, ModelCounters]]:
        """Of all models since the start, whether they are loaded or not."""
        return self.metrics.catalog.counters()

    @cached_property
    def lanes(self) -> list[LaneSample]:
        return [
            LaneSample(label_text(model=model, variant=variant, version=str(version)), metrics.snapshot())
            for model, counters in self.counters
            for (version, variant), metrics in sorted(counters.lanes.items())
            if metrics.used
        ]

    def free(self) -> None:
        """In pieces: to free ten thousand snapshots at once holds the GIL for 20 ms."""
        while lanes := vars(self).get("lanes"):
            del lanes[-PER_PIECE:]

    @cached_property
    def shadows(self) -> list[tuple[str, _engine.ShadowSnapshot]]:
        """Of versions of which the shadow has chosen a batch."""
        seen = [
            (label_text(model=model, version=str(version)), metrics.snapshot())
            for model, counters in self.counters
            for version, metrics in sorted(counters.shadows.items())
        ]
        return [(labels, shadow) for labels, shadow in seen if any(shadow.batches.values())]

    @cached_property
    def policies(self) -> list[tuple[str, Policy]]:
        """The default, and those that differ."""
        default = self.default_policy
        others = [m for m in self.models if not (m.policy is default or m.policy == default)]
        return [(NO_MODEL, default), *((label_text(model=m.name), m.policy) for m in others)]


def _of(version: ServedVersion, **labels: str) -> str:
    return label_text(model=version.model, version=str(version.version), **labels)


def _requests(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Of a lane OK in any case, so that rates have a zero to begin with; other codes once they have been seen."""
    for lane in scrape.lanes:
        for code, count in {Code.OK: 0, **lane.counters.requests.codes}.items():
            yield f'code="{Code(code).name}",{lane.labels}', count
    unserved = ((model, counters.unserved.snapshot()) for model, counters in scrape.counters)
    for model, requests in (*unserved, ("", scrape.metrics.engine.unrouted())):
        for code, count in requests.codes.items():
            yield label_text(code=Code(code).name, model=model, variant="", version=""), count


def _lane_counts(attribute: str, label: str) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """Of a dictionary, what has counted something."""
    read = attrgetter(attribute)

    def counts(scrape: Scrape) -> Iterator[tuple[str, float]]:
        for lane in scrape.lanes:
            for value, count in read(lane.counters).items():
                if count:
                    yield f'{label}="{value}",{lane.labels}', count

    return counts


def _load_failures(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield label_text(model="", version=""), 0
    for (model, version), count in sorted(scrape.metrics.catalog.failed_loads().items()):
        yield label_text(model=model, version=str(version)), count


def _arm_shares(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for model in scrape.models:
        for arm, share in model.policy.shares:
            yield label_text(arm=str(arm), model=model.name), share


def _canaries(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield label_text(model="", reason="", state="rolled_back", to=""), 0
    for model, seen in sorted(scrape.metrics.catalog.canaries.copy().items()):
        yield label_text(model=model, reason=seen.reason, state=seen.state, to=seen.to), 1


def _queued(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        for variant, lane in v.lanes.items():
            if lane.used:
                yield label_text(model=v.model, variant=variant, version=str(v.version)), lane.queued_rows


def _loads(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.catalog.changes.loads


def _unloads(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.catalog.changes.unloads


def _loaded_bytes(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", sum(v.memory_bytes for model in scrape.models for v in model.versions)


def _loaded_limit(scrape: Scrape) -> Iterator[tuple[str, float]]:
    limit = scrape.metrics.catalog.on_demand.room.most_bytes
    if limit is not None:
        yield "", limit


def _queue_capacity(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.queue_rows


def _utilization(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.meter.load.busy + scrape.queue_fill


def _queue_fill(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.queue_fill


def _model_infos(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for model in scrape.models:
        for v in model.versions:
            labels = label_text(model=v.model, state=v.told_state, version=str(v.version))
            yield labels, int(v.answers and not v.failed)


def _kernel_infos(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        shape = v.spec.summary() if v.spec else ""
        for k in v.kernels:
            facts = {"backend": k.backend, "device": k.device, "strategy": k.strategy, "isa": k.isa}
            yield _of(v, variant=k.variant, shape=shape, dtype=k.dtype, threads=str(k.threads), **facts), 1


def _precision_errors(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        if v.precision_error is not None:
            yield _of(v, kind="largest"), v.precision_error.largest
            yield _of(v, kind="mean"), v.precision_error.mean


def _kernel_memory(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        yield _of(v), v.memory_bytes


def _builds(scrape: Scrape) -> Iterator[tuple[str, float]]:
    version, python = package_version("fused-mlp"), platform.python_version()
    yield label_text(version=version, python=python, torch=_torch_version(), front=scrape.metrics.front), 1


def _torch_version() -> str:
    """Empty where torch is not installed. Does not import it."""
    try:
        return package_version("torch")
    except PackageNotFoundError:
        return ""


def _shadow_batches(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for labels, shadow in scrape.shadows:
        for outcome, count in shadow.batches.items():
            yield f'outcome="{outcome}",{labels}', count


def _shadow_verdicts(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Zeros included: the first mismatch must be seen."""
    for labels, shadow in scrape.shadows:
        for verdict, count in shadow.verdicts.items():
            yield f'verdict="{verdict}",{labels}', count


def _shadow_compute(scrape: Scrape) -> Iterator[tuple[str, _engine.HistogramSnapshot]]:
    for labels, shadow in scrape.shadows:
        yield f'{labels},variant="fused"', shadow.fused
        yield f'{labels},variant="unfused"', shadow.unfused


def _version_shadows(scrape: Scrape) -> Iterator[tuple[str, _engine.ShadowSnapshot]]:
    for model, each in scrape.metrics.catalog.version_shadows():
        yield label_text(arm=each.arm, model=model, shadow_arm=each.shadow_arm), each.shadow.snapshot()


def _version_differences(scrape: Scrape) -> Iterator[tuple[str, _engine.HistogramSnapshot]]:
    for labels, seen in _version_shadows(scrape):
        yield labels, seen.differences


def _version_batches(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for labels, seen in _version_shadows(scrape):
        for outcome, count in seen.batches.items():
            yield f'{labels},outcome="{outcome}"', count


def _fallbacks(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for reason in REASONS:
        yield f'{NO_MODEL},reason="{reason}",version=""', 0
    for model in scrape.models:
        for v in model.fallen_back:
            if v.fallback is not None:
                yield _of(v, reason=v.fallback.reason), 1


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
    Counter("fused_mlp_requests", "Requests answered, by gRPC code.", _requests),
    Counter(
        "fused_mlp_refused",
        "Requests that never reached a kernel, by reason.",
        _lane_counts("refused", "reason"),
    ),
    Counter(
        "fused_mlp_batches", "Kernel calls, by what released the batch.", _lane_counts("batches", "release")
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
        _queued,
    ),
    Gauge(
        "fused_mlp_queue_capacity_rows",
        "Rows that may wait, of each lane.",
        _queue_capacity,
    ),
    Gauge("fused_mlp_queue_fill", "How full the fullest queue is, from 0 to 1.", _queue_fill),
    Gauge(
        "fused_mlp_utilization",
        "Share of the usable cores that was in use, or waited for, over the last 5 s, plus fused_mlp_queue_fill.",
        _utilization,
    ),
    Gauge(
        "fused_mlp_in_flight",
        "Requests accepted and not yet answered.",
        lambda s: ((x.labels, x.counters.in_flight) for x in s.lanes),
    ),
    Counter(
        "fused_mlp_load_failures",
        "Loads that failed, on demand or of new files. Requests that waited are counted without a version.",
        _load_failures,
    ),
    Counter(
        "fused_mlp_loads",
        "Versions loaded, or built anew for another policy.",
        _loads,
    ),
    Counter(
        "fused_mlp_unloads",
        "Versions unloaded: to make room, on request, or replaced.",
        _unloads,
    ),
    Gauge("fused_mlp_loaded_bytes", "Memory of the kernels of all loaded versions.", _loaded_bytes),
    Gauge(
        "fused_mlp_loaded_limit_bytes",
        "The most that they may take, where FUSED_MLP_MAX_LOADED_BYTES is set.",
        _loaded_limit,
    ),
    # All that there is of a version without traffic, and short for that reason.
    Gauge("fused_mlp_model_info", "Model versions; 1 when they can answer.", _model_infos),
    Gauge("fused_mlp_kernel_info", "Kernels of versions with traffic.", _kernel_infos),
    Gauge(
        "fused_mlp_precision_error_ratio",
        "What weights in fewer bits cost versions with traffic, as a share of a row's largest output.",
        _precision_errors,
    ),
    Gauge(
        "fused_mlp_kernel_memory_bytes",
        "Weights of the kernels of versions with traffic, and on a GPU their buffers there.",
        _kernel_memory,
    ),
    Gauge("fused_mlp_build_info", "What runs.", _builds),
    Counter(
        "fused_mlp_shadow_batches",
        "Batches chosen to be run again on the other variant, by what became of them.",
        _shadow_batches,
    ),
    Counter("fused_mlp_shadow_rows", "Rows compared.", lambda s: ((x, seen.rows) for x, seen in s.shadows)),
    Counter(
        "fused_mlp_shadow_mismatches",
        "Compared batches with a difference over the tolerance, by what float64 says about them.",
        _shadow_verdicts,
    ),
    _histogram(
        "shadow_compute_seconds",
        "Each variant on the very same rows: CPU time of one thread, or elapsed on a GPU.",
        _shadow_compute,
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
        _version_batches,
    ),
    Histogram(
        "fused_mlp_version_shadow_difference_ratio",
        "Rows of those batches by the largest difference of their outputs, as a part of the outputs' size.",
        MILLIONTHS,
        lambda _: MILLIONTHS,
        6,
        _version_differences,
    ),
    Counter(
        "fused_mlp_version_shadow_top1_changes",
        "Rows of those batches whose largest output is another one.",
        lambda s: ((x, seen.top1_changes) for x, seen in _version_shadows(s)),
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
        _arm_shares,
    ),
    Gauge(
        "fused_mlp_canary_info",
        "The last canary of a model: running, promoted or rolled_back, and why.",
        _canaries,
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
    Gauge("fused_mlp_variant_fallback", "1 where fused is wanted and unfused serves, by reason.", _fallbacks),
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
