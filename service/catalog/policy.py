"""Which variant answers a model's requests, and how much of its traffic is compared: one immutable record per
model. Knows nothing of the engine; the catalog publishes policies with its routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fused_mlp.service.errors import InvalidInput

Variant = Literal["fused", "unfused"]
VARIANTS: tuple[Variant, Variant] = ("fused", "unfused")
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OnMismatch = Literal["log", "unfused"]


class Policy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: Variant = "fused"
    split: Ratio = 0.0
    allow_override: bool = False
    shadow: Ratio = 0.0
    on_mismatch: OnMismatch = "log"

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


class PolicyChange(BaseModel):
    """Some fields of a policy: what FUSED_MLP_POLICY says about one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: Variant | None = None
    split: Ratio | None = None
    allow_override: bool | None = None
    shadow: Ratio | None = None
    on_mismatch: OnMismatch | None = None

    def given(self) -> dict[str, object]:
        return self.model_dump(exclude_none=True)


def describe(error: ValidationError) -> list[str]:
    """One line for each field that cannot be used: what was expected and what came."""
    lines = []
    for item in error.errors():
        text = item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        lines.append(f"{'.'.join(map(str, item['loc']))}: expected {text}, got {item['input']!r}")
    return lines
