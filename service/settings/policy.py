"""Which variant answers a model's requests, how much of its traffic is compared, its share of the time, and what its
weights are kept in: one immutable record per model. Knows nothing of the engine; the catalog publishes policies with
its routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fused_mlp.models.quantization import Precision
from fused_mlp.service.errors import InvalidInput
from fused_mlp.service.variant import VARIANTS, Variant

Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OnMismatch = Literal["log", "unfused"]
ALL_MODELS = "*"  # as a name in FUSED_MLP_POLICY


class Policy(BaseModel):
    """FUSED_MLP_POLICY names some of the fields for a model, or for all models."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: Variant = "fused"
    split: Ratio = 0.0
    allow_override: bool = False
    shadow: Ratio = 0.0
    # The largest relative difference that is no mismatch. None: by the kernels' dtypes.
    shadow_tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    on_mismatch: OnMismatch = "log"
    # Its share of the time beside other models that have work: docs/scheduling.md.
    weight: Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)] = 1.0
    # What versions saved in float32 are kept in; those saved in fewer bits stay as they are: docs/precision.md.
    precision: Precision = "float32"

    def given(self) -> dict[str, object]:
        """The fields that were named, not those left at their defaults."""
        return self.model_dump(exclude_unset=True)

    def changed(self, changes: Mapping[str, object]) -> Policy:
        """A new policy with some fields replaced, all of them checked. Raises InvalidInput."""
        try:
            return Policy.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            raise InvalidInput("; ".join(describe(error))) from None

    @property
    def wants_fused(self) -> bool:
        """Whether any request that names no variant is meant for the fused one."""
        return self.variant == "fused" or self.split > 0

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that a request or the shadow can reach. Only their kernels are built."""
        return VARIANTS if self.split or self.allow_override or self.shadow else (self.variant,)


def describe(error: ValidationError) -> list[str]:
    """One line for each field that cannot be used: what was expected and what came."""
    lines = []
    for item in error.errors():
        text = item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        lines.append(f"{'.'.join(map(str, item['loc']))}: expected {text}, got {item['input']!r}")
    return lines
