"""What is served, as records: a model, its versions, the policy in force and what came of it. Immutable; the
catalog makes new ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from fused_mlp.kernels import KernelInfo, Variant
from fused_mlp.models import Mlp
from fused_mlp.service import _engine
from fused_mlp.service.catalog.policy import Policy

State = Literal["READY", "UNAVAILABLE"]
VARIANTS: tuple[Variant, Variant] = ("fused", "unfused")

# Why fused does not serve: it was found to be wrong by the shadow, or by the check at load, or there is none.
Reason = Literal["shadow_mismatch", "load_check", "unavailable"]
REASONS: tuple[Reason, ...] = get_args(Reason)

# The largest relative difference between the variants that rounding explains. float32: sums of thousands of
# terms in another order differ by 1e-5, a hundredth of it. The others: some twenty roundings of the dtype, for
# there unfused rounds after every layer and fused need not. A kernel that is wrong differs by far more.
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Fallback:
    """Fused cannot serve this version: unfused does, whatever the policy says."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class ServedVersion:
    """One version: READY with a lane for each variant, or UNAVAILABLE with the reason. `variant` answers requests
    that name none."""

    model: str
    version: int
    state: State
    reason: str = ""
    mlp: Mlp | None = None
    variant: Variant = "fused"
    kernels: tuple[KernelInfo, ...] = ()
    lanes: dict[Variant, _engine.Lane] = field(default_factory=dict)
    shadow: _engine.Shadow | None = None
    fallback: Fallback | None = None

    @property
    def tolerance(self) -> float:
        """Of the shadow, unless a setting says otherwise: that of the coarser of its kernels."""
        return max((TOLERANCES.get(info.dtype, 0.0) for info in self.kernels), default=0.0) or 1e-3


@dataclass(frozen=True)
class ServedModel:
    name: str
    versions: tuple[ServedVersion, ...]
    policy: Policy = field(default_factory=Policy)

    @property
    def ready(self) -> tuple[ServedVersion, ...]:
        return tuple(v for v in self.versions if v.state == "READY")

    @property
    def default(self) -> ServedVersion | None:
        """The highest version that can answer."""
        return self.ready[-1] if self.ready else None

    @property
    def problems(self) -> str:
        """In one line, why versions cannot answer."""
        broken = [f"{self.name}/{v.version}: {v.reason}" for v in self.versions if v.state != "READY"]
        return "; ".join(broken) or f"{self.name}: no version found"

    @property
    def fallen_back(self) -> tuple[ServedVersion, ...]:
        """The versions that answer unfused though the policy would have fused answer."""
        return tuple(v for v in self.ready if v.fallback and self.policy.wants_fused)

    def under(self, policy: Policy, *, again: bool = False) -> ServedModel:
        """The same model under another policy. `again`: what the shadow had withdrawn is given another chance."""
        versions = []
        for v in self.versions:
            fallback = None if again and v.fallback and v.fallback.reason == "shadow_mismatch" else v.fallback
            variant: Variant = "unfused" if fallback else policy.variant
            reason = v.reason if fallback or not v.fallback else ""
            versions.append(replace(v, variant=variant, fallback=fallback, reason=reason))
        return ServedModel(self.name, tuple(versions), policy)

    def without_fused(self, version: ServedVersion, detail: str) -> ServedModel:
        """The same model with a version whose fused kernel the shadow found to be wrong."""
        fallen = replace(
            version,
            variant="unfused",
            reason=f"fused is withdrawn: {detail}",
            fallback=Fallback("shadow_mismatch", detail),
        )
        return replace(self, versions=tuple(fallen if v is version else v for v in self.versions))
