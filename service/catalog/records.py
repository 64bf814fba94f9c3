# SPDX-License-Identifier: Apache-2.0
"""Served models as immutable records: their versions, policies, and which variant answers. The
catalog makes new records for every change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fused_mlp.kernels import Kernel, KernelInfo
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import INPUT
from fused_mlp.models.repository.repository import Signature
from fused_mlp.models.weights.mlp import Example
from fused_mlp.models.weights.precision_error import PrecisionError
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.models.weights.tables import OpenTables
from fused_mlp.service import _engine
from fused_mlp.service.catalog.stored_weights import StoredWeights
from fused_mlp.service.policy.arm import LATEST, PREVIOUS, Arm
from fused_mlp.service.policy.policy import Policy
from fused_mlp.variant import Variant

State = Literal["LOADING", "READY", "UNAVAILABLE"]

# Why fused does not serve: the shadow found it wrong, the check at load found it wrong, or none could be built.
Reason = Literal["shadow_mismatch", "load_check", "unavailable"]
REASONS: tuple[Reason, ...] = get_args(Reason)

# The largest relative difference between the variants that rounding explains. float32: sums of thousands of terms in
# another order differ by about 1e-5, a hundredth of the tolerance. The other dtypes: some twenty roundings, because
# unfused rounds after every layer and fused need not. A wrong kernel differs by far more.
# int8: each layer's rows are rounded to 7 bits, which unfused does not do.
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2, "int8": 0.1}


@dataclass(frozen=True)
class Fallback:
    """Why unfused serves this version whatever the policy says."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class ServedVersion:
    """One version: LOADING, READY with a lane for each variant that its policy can reach (or could once), or
    UNAVAILABLE with the reason. `variant` answers requests that name none. `spec` is None if it could not be read.
    `on_demand`: the first request loads it. `no_room`: other versions fill the memory. `failed`: its last load
    failed."""

    model: str
    version: int
    state: State
    reason: str = ""
    spec: MlpSpec | None = None
    layout: _engine.InputLayout | None = None  # of a version that is loaded and has named inputs
    example: Example | None = None
    weights: StoredWeights | None = None
    tables: OpenTables | None = None
    precision: Precision = "float32"
    wanted: Precision = (
        "float32"  # by the policy that it was built under; layers for which it costs too much differ
    )
    precision_error: PrecisionError | None = None
    on_demand: bool = False
    no_room: bool = False
    failed: bool = False
    variant: Variant = "fused"
    kernels: tuple[KernelInfo, ...] = ()
    lanes: dict[Variant, _engine.Lane] = field(default_factory=dict)
    shadow: _engine.Shadow | None = None
    fused: Kernel | None = None  # for the referee
    fallback: Fallback | None = None
    memory_bytes: int = 0  # of its kernels
    loaded_ns: int = 0  # when, on the monotonic clock
    signature: Signature = ()  # of the files that it was read from

    def lane(self, variant: Variant | None = None) -> _engine.Lane | None:
        """The lane of a variant; None: the variant that answers requests that name none."""
        return self.lanes.get(variant or self.variant) or self.lanes.get(self.variant)

    @property
    def last_used_ns(self) -> int:
        """When its last batch ended, or when it was loaded."""
        return max([self.loaded_ns, *(lane.last_used_ns for lane in self.lanes.values())])

    @property
    def has_run(self) -> bool:
        return any(lane.last_used_ns for lane in self.lanes.values())

    @property
    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self.lanes.values())

    @property
    def reported_state(self) -> str:
        """For our own API, /status.json and /metrics. (Triton's RepositoryIndex has only the states of `state`.)"""
        waits = self.on_demand and self.state == "UNAVAILABLE" and not self.failed
        return "ON_DEMAND" if waits else self.state

    @property
    def answers(self) -> bool:
        """Whether it can answer, loaded or on demand."""
        return self.state == "READY" or self.on_demand

    @property
    def tolerance(self) -> float:
        """The shadow's tolerance unless a setting overrides it: that of the coarser of its kernels."""
        usual = max((TOLERANCES.get(info.dtype, 0.0) for info in self.kernels), default=0.0) or 1e-3
        if self.precision_error is None:
            return usual
        return max(usual, 4 * self.precision_error.largest)  # callers' rows may be worse than those measured

    def lanes_without(self, other: ServedVersion) -> list[_engine.Lane]:
        """Its lanes that the other one does not have."""
        return [lane for lane in self.lanes.values() if lane not in other.lanes.values()]

    def outdated(self, policy: Policy) -> bool:
        """Whether its weights are to be kept in another precision."""
        return (
            self.state == "READY"
            and self.wanted != policy.precision
            and self.weights is not None
            and not self.weights.reduced
        )

    def lacks(self, policy: Policy) -> bool:
        """Whether a kernel has to be built before it serves under the policy."""
        return self.outdated(policy) or bool(self.missing(policy))

    def missing(self, policy: Policy) -> tuple[Variant, ...]:
        """The variants that the policy can reach and that have no kernel yet."""
        if self.state != "READY":
            return ()
        return tuple(
            v for v in policy.variants if v not in self.lanes and not (v == "fused" and self.fallback)
        )


@dataclass(frozen=True)
class VersionShadow:
    """Two arms of different versions: batches that the first answered are run again on the second."""

    arm: str
    shadow_arm: str
    lanes: tuple[_engine.Lane, _engine.Lane] | None  # None: no longer compared
    shadow: _engine.Shadow
    metrics: _engine.ShadowMetrics  # of the shadow, and of the next one of the same arms


@dataclass(frozen=True)
class ServedModel:
    name: str
    versions: tuple[ServedVersion, ...]
    policy: Policy = field(default_factory=Policy)

    @property
    def ready(self) -> tuple[ServedVersion, ...]:
        return tuple(v for v in self.versions if v.state == "READY")

    @property
    def answering(self) -> tuple[ServedVersion, ...]:
        return tuple(v for v in self.versions if v.answers)

    @property
    def complete(self) -> bool:
        """Whether it has versions and all of them can answer."""
        return bool(self.versions) and len(self.answering) == len(self.versions)

    @property
    def healthy(self) -> bool:
        """Whether all versions can answer, and none of them failed to load last."""
        return self.complete and not any(v.failed for v in self.versions)

    @property
    def default(self) -> ServedVersion | None:
        """The version that the policy names if it can answer, otherwise the highest that can. The new version of a
        canary does not take over by being the latest."""
        named, policy = self.named(self.policy.version), self.policy
        if policy.version == LATEST and policy.canary and policy.canary.arm.variant in (None, policy.variant):
            others = [v for v in self.answering if str(v.version) != policy.canary.arm.version]
            named = others[-1] if others else named
        return named if named is not None and named.answers else self.named(LATEST)

    def named(self, version: str) -> ServedVersion | None:
        """By a number, LATEST, PREVIOUS or a label of the policy."""
        answering = self.answering
        if version == LATEST:
            return answering[-1] if answering else None
        if version == PREVIOUS:
            return answering[-2] if len(answering) > 1 else None
        number = int(version) if version.isdigit() else self.policy.labels.get(version)
        return next((v for v in self.versions if v.version == number), None)

    def find_arm(self, arm: Arm) -> ServedVersion | None:
        return self.named(arm.version) if arm.version else self.default

    def arm_problem(self, arm: Arm) -> str:
        """Why an arm cannot take requests of the default arm; empty: it can."""
        version, default = self.find_arm(arm), self.default
        if version is None:
            return "there is no such version"
        if not version.answers:
            return version.reason
        if default is None or not default.spec or not version.spec:
            return ""
        return other_inputs(version, default)

    def canary_problem(self, arm: Arm) -> str:
        """Why a canary to an arm would move nothing; empty: it would. If the default follows the versions, as `latest`
        does, a canary to the newest version starts from the one before."""
        new = self.find_arm(arm)
        follows = self.policy.version in (LATEST, PREVIOUS)
        if follows or new is None or new is not self.default or arm.variant not in (None, new.variant):
            return ""
        return f"version {new.version} is the default already"

    def shadow_problem(self, arm: Arm) -> str:
        """Why an arm that can answer cannot shadow the default arm; empty: it can."""
        shadow, live = self.find_arm(arm), self.default
        if shadow is live:
            return "it is of the version that answers, whose variants a shadow without an arm compares"
        if not shadow or not live or not shadow.spec or not live.spec:
            return ""
        # Its kernel gets the records of the other: ids that were checked against tables of other sizes.
        if shadow.spec.inputs != live.spec.inputs:
            return "its inputs or tables differ from those of the version that answers"
        width, usual = shadow.spec.out_features, live.spec.out_features
        return (
            "" if width == usual else f"its rows of {width} outputs cannot be compared with those of {usual}"
        )

    @property
    def problems(self) -> str:
        """Why versions cannot answer, in one line."""
        broken = [f"{self.name}/{v.version}: {v.reason}" for v in self.versions if not v.answers]
        return "; ".join(broken) or f"{self.name}: no version found"

    def with_version(self, new: ServedVersion) -> ServedModel:
        """The same model with one version more, or in place of that of the same number; as its policy was."""
        others = [v for v in self.versions if v.version != new.version]
        return replace(self, versions=tuple(sorted([*others, new], key=lambda v: v.version)))

    def replaced(self, old: ServedVersion, new: ServedVersion) -> ServedModel:
        """The same model with one version in place of another, under its policy."""
        versions = tuple(new if v is old else v for v in self.versions)
        return ServedModel(self.name, versions).under(self.policy)

    def lacks(self, policy: Policy) -> bool:
        """Whether a kernel of a version has to be built before it serves under the policy."""
        return any(v.lacks(policy) for v in self.versions)

    @property
    def fallen_back(self) -> tuple[ServedVersion, ...]:
        """The versions that answer unfused although the policy asks for fused."""
        return tuple(v for v in self.ready if v.fallback and self.policy.wants_fused)

    def under(self, policy: Policy, *, again: bool = False) -> ServedModel:
        """The same model under another policy. `again`: re-enable fused kernels that the shadow withdrew."""
        versions = []
        for v in self.versions:
            fallback = None if again and v.fallback and v.fallback.reason == "shadow_mismatch" else v.fallback
            variant: Variant = "unfused" if fallback else policy.variant
            reason = v.reason if fallback or not v.fallback else ""
            versions.append(replace(v, variant=variant, fallback=fallback, reason=reason))
        return ServedModel(self.name, tuple(versions), policy)

    def without_fused(self, version: ServedVersion, detail: str) -> ServedModel:
        """The same model, with the fused kernel of one version withdrawn: the shadow found it wrong."""
        fallen = replace(
            version,
            variant="unfused",
            reason=f"fused is withdrawn: {detail}",
            fallback=Fallback("shadow_mismatch", detail),
        )
        return replace(self, versions=tuple(fallen if v is version else v for v in self.versions))


def other_inputs(version: ServedVersion, usual: ServedVersion) -> str:
    """Why requests for `usual` do not fit the other version; empty: they do. Tables may grow from one to the next."""
    if version.spec is None or usual.spec is None:
        return ""
    own, known = ([each.name for each in spec.inputs or ()] for spec in (version.spec, usual.spec))
    if sorted(own) != sorted(known):
        return f"it takes the inputs {own or [INPUT]}, version {usual.version} {known or [INPUT]}"
    width, before = version.spec.in_features, usual.spec.in_features
    if own or width == before:
        return ""
    return f"it takes rows of {width}, version {usual.version} of {before}"
