# SPDX-License-Identifier: Apache-2.0
"""Which arms answer a model's requests, how much of its traffic is compared, its share of the time, and the precision
of its weights: one immutable record per model. Knows nothing of the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fused_mlp.models.weights.quantization import Precision
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.policy.arm import LATEST, Arm, parse_arm
from fused_mlp.service.policy.canary_plan import CanaryPlan
from fused_mlp.service.policy.fields import ArmName, Label, Ratio, VersionName
from fused_mlp.variant import VARIANTS, Variant

OnMismatch = Literal["log", "unfused"]
MAX_ARMS = 8  # as the engine's kMaxArms
MAX_LABELS = 64
MAX_VALUE_CHARACTERS, MAX_ERRORS = 100, 5  # in an error text
ALL_MODELS = "*"  # as a name in FUSED_MLP_POLICY
_LATEST = re.compile(r"latest:([1-9][0-9]{0,8})", re.ASCII)
_NUMBERS = re.compile(r"[1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*", re.ASCII)


def check_versions(text: str) -> str:
    if text == "all" or _LATEST.fullmatch(text) or _NUMBERS.fullmatch(text):
        return text
    raise ValueError("all, latest:2, or numbers such as 3,5")


class Policy(BaseModel):
    """FUSED_MLP_POLICY names some of the fields for a model, or for all models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The default arm: a version and a variant of it.
    version: VersionName = LATEST
    variant: Variant = "fused"
    # The share of the other variant, of whichever version answers.
    split: Ratio = 0.0
    # The shares of other arms, of requests that name no version; the default arm has what they leave.
    arms: Annotated[dict[ArmName, Ratio], Field(max_length=MAX_ARMS)] = {}
    labels: Annotated[
        dict[Label, Annotated[int, Field(ge=1, le=2**63 - 1)]], Field(max_length=MAX_LABELS)
    ] = {}
    # Raises the share of an arm step by step: docs/ab/canary.md.
    canary: CanaryPlan | None = None
    allow_override: bool = False
    shadow: Ratio = 0.0
    # The arm that runs compared batches again. Empty: the other variant of the version that answered.
    shadow_arm: ArmName | Literal[""] = ""
    # The largest relative difference that is no mismatch. None: by the kernels' dtypes.
    shadow_tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    on_mismatch: OnMismatch = "log"
    # Its share of the time beside other models that have work: docs/internals/scheduling.md.
    weight: Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)] = 1.0
    # The precision for versions that were saved in float32; other versions stay as they are: docs/models/precision.md.
    precision: Precision = "float32"
    # Which versions are served: all, latest:2, or some by number, 3,5. docs/operations/reload.md.
    versions: Annotated[str, AfterValidator(check_versions)] = "all"

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.split and self.arms:
            raise ValueError("split or arms, not both: the other variant is an arm too")
        if sum(self.arms.values()) > 1 + 1e-9:
            raise ValueError("arms whose shares sum up to 1 at most")
        if self.canary is not None and (self.split or self.arms.keys() - {self.canary.to}):
            raise ValueError("a canary alone, without a split or other arms")
        return self

    @property
    def shares(self) -> list[tuple[Arm, float]]:
        return [(parse_arm(name), share) for name, share in self.arms.items() if share > 0]

    @property
    def named_arms(self) -> list[tuple[str, Arm]]:
        """All arms but the default, with the field that names them."""
        arms = [("arms", arm) for arm, _ in self.shares]
        if self.canary is not None:
            arms.append(("canary", self.canary.arm))
        if self.shadow_arm:
            arms.append(("shadow_arm", parse_arm(self.shadow_arm)))
        return arms

    @property
    def named(self) -> set[int]:
        """The versions that any field names by number. They are served whatever `versions` says."""
        names = {self.version, *(arm.version for _, arm in self.named_arms)}
        return {int(name) for name in names if name.isdigit()} | set(self.labels.values())

    @property
    def names_something(self) -> bool:
        """Whether any field names a version that may not be there."""
        fields = self.labels, self.arms, self.canary, self.shadow_arm
        return self.version != LATEST or self.versions != "all" or any(fields)

    def given(self) -> dict[str, object]:
        """The fields that were set, without defaults."""
        return self.model_dump(exclude_unset=True)

    def changed(self, changes: Mapping[str, object]) -> Policy:
        """A new policy with some fields replaced. Raises InvalidInput."""
        try:
            return Policy.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            raise InvalidInput("; ".join(describe(error))) from None

    @property
    def wants_fused(self) -> bool:
        """Whether the fused variant answers any request that names no variant."""
        named = [arm.variant or self.variant for arm, _ in self.shares]
        return self.variant == "fused" or self.split > 0 or "fused" in named

    def selected(self, versions: Collection[int], failed: Collection[int] = ()) -> set[int]:
        """Which of these versions to serve. Versions that failed are selected too, because their state is reported, but
        do not count among the latest: an older one stays."""
        if latest := _LATEST.fullmatch(self.versions):
            good = sorted(set(versions) - set(failed), reverse=True)[: int(latest[1])]
            chosen = {v for v in versions if not good or v >= good[-1]}
        elif self.versions == "all":
            chosen = set(versions)
        else:
            chosen = {int(number) for number in self.versions.split(",")}.intersection(versions)
        return chosen | self.named.intersection(versions)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that a request or the shadow can reach. Only their kernels are built."""
        named = {arm.variant for _, arm in self.named_arms} - {None, self.variant}
        both = self.split or self.allow_override or (self.shadow and not self.shadow_arm) or named
        return VARIANTS if both else (self.variant,)


def parse_policies(text: str) -> dict[str, Policy]:
    """By model. Raises ValueError in one line."""
    return check_policies(parse_json(text))


def parse_json(text: str) -> object:
    """Raises ValueError in one line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, {error}") from None


def check_policies(policies: object) -> dict[str, Policy]:
    """By model. Raises ValueError in one line."""
    try:
        return TypeAdapter(dict[str, Policy]).validate_python(policies)
    except ValidationError as error:
        raise ValueError("; ".join(describe(error))) from None


def describe(error: ValidationError) -> list[str]:
    """A line for each of the first fields that are wrong: the expected value and the given one."""
    lines = []
    for item in error.errors()[:MAX_ERRORS]:
        where = ".".join(str(part)[:MAX_VALUE_CHARACTERS] for part in item["loc"])
        text, got = item["msg"], f", got {_cut(item['input'])}"
        for prefix in ("Input should be ", "Value error, "):
            if text.startswith(prefix):
                text = f"expected {text.removeprefix(prefix).removeprefix('expected ')}"
        if item["type"] == "extra_forbidden":
            text, got = _unknown_field(item["loc"]), ""
        elif item["type"] == "missing":
            text, got = "expected a value, got none", ""
        elif ", got " in text:
            got = ""  # the message has the value
        elif item["type"] == "value_error" and isinstance(item["input"], dict):
            got = ""  # fields that contradict each other: the value is the whole record
        lines.append(f"{where}: {text}{got}".removeprefix(": "))
    left = error.error_count() - len(lines)
    return [*lines, f"and {left} more"] if left else lines


def _unknown_field(loc: tuple[int | str, ...]) -> str:
    record = CanaryPlan if "canary" in loc[:-1] else Policy
    close = get_close_matches(str(loc[-1]), record.model_fields, 1)
    return (
        f"no such field; did you mean {close[0]}?" if close else "no such field, docs/ab/index.md lists them"
    )


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."
