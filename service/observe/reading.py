# SPDX-License-Identifier: Apache-2.0
"""What one scrape reads of models, versions and lanes, from the engine's atomics: pairs of labels and values for each
family. Labels come only from what is served, never from what a client sent. A model has one series until it has counted
something: most of ten thousand models have nothing to tell."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from operator import attrgetter
from typing import TYPE_CHECKING

from fused_mlp.service import _engine
from fused_mlp.service.catalog.ledger import ModelCounters
from fused_mlp.service.catalog.records import REASONS, ServedModel, ServedVersion
from fused_mlp.service.catalog.unknown_names import unknown_names
from fused_mlp.service.errors import Code
from fused_mlp.service.observe.exposition import PER_PIECE, label_text
from fused_mlp.service.observe.load import queue_fill as fill_of_queues
from fused_mlp.service.settings.policy import Policy

if TYPE_CHECKING:
    from fused_mlp.service.observe.model_metrics import ModelMetrics

# The model of series that belong to none: requests that named no model we serve, and what holds for those without
# series of their own.
NO_MODEL = label_text(model="")


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
        return fill_of_queues(self.used, self.metrics.queue_rows)

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


def requests(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Of a lane OK in any case, so that rates have a zero to begin with; other codes once they have been seen."""
    for lane in scrape.lanes:
        for code, count in {Code.OK: 0, **lane.counters.requests.codes}.items():
            yield f'code="{Code(code).name}",{lane.labels}', count
    unserved = ((model, counters.unserved.snapshot()) for model, counters in scrape.counters)
    for model, requests in (*unserved, ("", scrape.metrics.engine.unrouted())):
        for code, count in requests.codes.items():
            yield label_text(code=Code(code).name, model=model, variant="", version=""), count


def lane_counts(attribute: str, label: str) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """Of a dictionary, what has counted something."""
    read = attrgetter(attribute)

    def counts(scrape: Scrape) -> Iterator[tuple[str, float]]:
        for lane in scrape.lanes:
            for value, count in read(lane.counters).items():
                if count:
                    yield f'{label}="{value}",{lane.labels}', count

    return counts


def load_failures(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield label_text(model="", version=""), 0
    for (model, version), count in sorted(scrape.metrics.catalog.failed_loads().items()):
        yield label_text(model=model, version=str(version)), count


def arm_shares(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for model in scrape.models:
        for arm, share in model.policy.shares:
            yield label_text(arm=str(arm), model=model.name), share


def canaries(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield label_text(model="", reason="", state="rolled_back", to=""), 0
    for model, seen in sorted(scrape.metrics.catalog.canaries.copy().items()):
        yield label_text(model=model, reason=seen.reason, state=seen.state, to=seen.to), 1


def queued(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        for variant, lane in v.lanes.items():
            if lane.used:
                yield label_text(model=v.model, variant=variant, version=str(v.version)), lane.queued_rows


def loads(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.catalog.changes.loads


def unloads(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.catalog.changes.unloads


def loaded_bytes(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", sum(v.memory_bytes for model in scrape.models for v in model.versions)


def loaded_limit(scrape: Scrape) -> Iterator[tuple[str, float]]:
    limit = scrape.metrics.catalog.on_demand.room.most_bytes
    if limit is not None:
        yield "", limit


def queue_capacity(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.queue_rows


def utilization(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.metrics.meter.load.busy + scrape.queue_fill


def queue_fill(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield "", scrape.queue_fill


def model_infos(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for model in scrape.models:
        for v in model.versions:
            labels = label_text(model=v.model, state=v.told_state, version=str(v.version))
            yield labels, int(v.answers and not v.failed)


def kernel_infos(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        shape = v.spec.summary() if v.spec else ""
        for k in v.kernels:
            facts = {"backend": k.backend, "device": k.device, "strategy": k.strategy, "isa": k.isa}
            yield _of(v, variant=k.variant, shape=shape, dtype=k.dtype, threads=str(k.threads), **facts), 1


def precision_errors(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        if v.precision_error is not None:
            yield _of(v, kind="largest"), v.precision_error.largest
            yield _of(v, kind="mean"), v.precision_error.mean


def kernel_memory(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        yield _of(v), v.memory_bytes


def builds(scrape: Scrape) -> Iterator[tuple[str, float]]:
    version, python = package_version("fused-mlp"), platform.python_version()
    yield label_text(version=version, python=python, torch=_torch_version(), front=scrape.metrics.front), 1


def _torch_version() -> str:
    """Empty where torch is not installed. Does not import it."""
    try:
        return package_version("torch")
    except PackageNotFoundError:
        return ""


def shadow_batches(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for labels, shadow in scrape.shadows:
        for outcome, count in shadow.batches.items():
            yield f'outcome="{outcome}",{labels}', count


def shadow_verdicts(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Zeros included: the first mismatch must be seen."""
    for labels, shadow in scrape.shadows:
        for verdict, count in shadow.verdicts.items():
            yield f'verdict="{verdict}",{labels}', count


def shadow_compute(scrape: Scrape) -> Iterator[tuple[str, _engine.HistogramSnapshot]]:
    for labels, shadow in scrape.shadows:
        yield f'{labels},variant="fused"', shadow.fused
        yield f'{labels},variant="unfused"', shadow.unfused


def version_shadows(scrape: Scrape) -> Iterator[tuple[str, _engine.ShadowSnapshot]]:
    for model, each in scrape.metrics.catalog.version_shadows():
        yield label_text(arm=each.arm, model=model, shadow_arm=each.shadow_arm), each.shadow.snapshot()


def version_differences(scrape: Scrape) -> Iterator[tuple[str, _engine.HistogramSnapshot]]:
    for labels, seen in version_shadows(scrape):
        yield labels, seen.differences


def version_batches(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for labels, seen in version_shadows(scrape):
        for outcome, count in seen.batches.items():
            yield f'{labels},outcome="{outcome}"', count


def fallbacks(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for reason in REASONS:
        yield f'{NO_MODEL},reason="{reason}",version=""', 0
    for model in scrape.models:
        for v in model.fallen_back:
            if v.fallback is not None:
                yield _of(v, reason=v.fallback.reason), 1


def default_versions(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """Of models with traffic, or a policy of their own."""
    used, usual = {v.model for v in scrape.used}, scrape.default_policy
    for model in scrape.models:
        own = not (model.policy is usual or model.policy == usual)
        if (own or model.name in used) and (default := model.default) is not None:
            yield label_text(model=model.name), default.version


def unknown(scrape: Scrape) -> Iterator[tuple[str, float]]:
    yield label_text(field="version", model=""), 0
    for model in scrape.models:
        for field in sorted({field for field, _ in unknown_names(model)}):
            yield label_text(field=field, model=model.name), 1
