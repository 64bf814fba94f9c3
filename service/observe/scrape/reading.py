# SPDX-License-Identifier: Apache-2.0
"""Reads models, versions and lanes for one scrape from the engine's atomics: pairs of labels and values for each
family. Labels come only from the served models, never from a client. A model has one series until it has traffic: most
of ten thousand models have none."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from fused_mlp.service import _engine
from fused_mlp.service.catalog.ledger import ModelCounters
from fused_mlp.service.catalog.records import REASONS, ServedModel, ServedVersion
from fused_mlp.service.catalog.unknown_names import unknown_names
from fused_mlp.service.errors import Code
from fused_mlp.service.observe.scrape.exposition import PER_PIECE, label_text
from fused_mlp.service.observe.utilisation import queue_fill as fill_of_queues
from fused_mlp.service.policy.policy import Policy

if TYPE_CHECKING:
    from fused_mlp.service.observe.scrape.model_metrics import ModelMetrics

# The model label of series without a model: requests that named no served model, and values without a model
V = TypeVar("V")

NO_MODEL = label_text(model="")


@dataclass(frozen=True)
class LaneSample:
    labels: str
    counters: _engine.LaneSnapshot


class Scrape:
    """The values that one scrape has read so far: none is read before a family needs it."""

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
        """All models since the start, loaded or not."""
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
        """Frees snapshots in pieces: to free ten thousand at once holds the GIL for 20 ms."""
        while lanes := vars(self).get("lanes"):
            del lanes[-PER_PIECE:]

    @cached_property
    def shadows(self) -> list[tuple[str, _engine.ShadowSnapshot]]:
        """Versions of which the shadow has chosen a batch."""
        seen = [
            (label_text(model=model, version=str(version)), metrics.snapshot())
            for model, counters in self.counters
            for version, metrics in sorted(counters.shadows.items())
        ]
        return [(labels, shadow) for labels, shadow in seen if any(shadow.batches.values())]

    @cached_property
    def policies(self) -> list[tuple[str, Policy]]:
        """The default policy, and the models with another one."""
        default = self.default_policy
        others = [m for m in self.models if not (m.policy is default or m.policy == default)]
        return [(NO_MODEL, default), *((label_text(model=m.name), m.policy) for m in others)]


def single(read: Callable[[Scrape], float]) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """One value without labels."""
    return lambda scrape: iter([("", read(scrape))])


def of_lanes(read: Callable[[_engine.LaneSnapshot], V]) -> Callable[[Scrape], Iterator[tuple[str, V]]]:
    return lambda scrape: ((lane.labels, read(lane.counters)) for lane in scrape.lanes)


def of_shadows(
    read: Callable[[_engine.ShadowSnapshot], float],
) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    return lambda scrape: ((labels, read(seen)) for labels, seen in scrape.shadows)


def of_policies(read: Callable[[Policy], float]) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    return lambda scrape: ((labels, read(policy)) for labels, policy in scrape.policies)


def of_versions(
    read: Callable[[ServedVersion], float | None],
) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """Versions with traffic that have the value."""
    return lambda scrape: ((_of(v), value) for v in scrape.used if (value := read(v)) is not None)


def _of(version: ServedVersion, **labels: str) -> str:
    return label_text(model=version.model, version=str(version.version), **labels)


def requests(scrape: Scrape) -> Iterator[tuple[str, float]]:
    """The code OK of a lane always, so that rates have a zero to begin with; other codes once they have occurred."""
    for lane in scrape.lanes:
        for code, count in {Code.OK: 0, **lane.counters.requests.codes}.items():
            yield f'code="{Code(code).name}",{lane.labels}', count
    unserved = ((model, counters.unserved.snapshot()) for model, counters in scrape.counters)
    for model, requests in (*unserved, ("", scrape.metrics.engine.unrouted())):
        for code, count in requests.codes.items():
            yield label_text(code=Code(code).name, model=model, variant="", version=""), count


def lane_counts(attribute: str, label: str) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """The entries of a dictionary that are not zero."""
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
    for model, seen in sorted(scrape.metrics.catalog.policies.canaries.copy().items()):
        yield label_text(model=model, reason=seen.reason, state=seen.state, to=seen.to), 1


def queued(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        for variant, lane in v.lanes.items():
            if lane.used:
                yield label_text(model=v.model, variant=variant, version=str(v.version)), lane.queued_rows


def loaded_limit(scrape: Scrape) -> Iterator[tuple[str, float]]:
    limit = scrape.metrics.catalog.on_demand.room.max_bytes
    if limit is not None:
        yield "", limit


def lane_losses(
    read: Callable[[_engine.LaneSnapshot], float],
) -> Callable[[Scrape], Iterator[tuple[str, float]]]:
    """Versions with problems; a zero with empty labels otherwise, so that rules find the metric on a healthy server."""

    def rows(scrape: Scrape) -> Iterator[tuple[str, float]]:
        yield 'model="",variant="",version=""', 0
        yield from ((x.labels, value) for x in scrape.lanes if (value := read(x.counters)))

    return rows


def model_infos(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for model in scrape.models:
        for v in model.versions:
            labels = label_text(model=v.model, state=v.reported_state, version=str(v.version))
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


def refused_ids(scrape: Scrape) -> Iterator[tuple[str, float]]:
    for v in scrape.used:
        for name, count in v.layout.refused() if v.layout else ():
            yield _of(v, input=name), count


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
    """Models with traffic or with their own policy."""
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
