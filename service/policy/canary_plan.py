# SPDX-License-Identifier: Apache-2.0
"""The plan of a canary, as a policy holds it, and how far a canary is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fused_mlp.service.policy.arm import Arm, parse_arm
from fused_mlp.service.policy.fields import ArmName, Ratio

MAX_STEPS = 100


class CanaryPlan(BaseModel):
    """The arm `to` gets the share of each step for `interval_s`. It becomes the default if it answers as well as the
    default arm in all steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: ArmName
    steps: Annotated[
        tuple[Annotated[float, Field(gt=0, le=100)], ...], Field(min_length=1, max_length=MAX_STEPS)
    ] = (1, 5, 25, 100)  # percent
    interval_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 300.0
    max_error_increase: Ratio = 0.01  # of the share of failed requests
    max_p99_ratio: Annotated[float, Field(ge=1, le=1000)] = 1.5
    min_requests: Annotated[int, Field(ge=1, le=2**63 - 1)] = 100  # of each arm, before the next step

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if any(before >= after for before, after in pairwise(self.steps)):
            raise ValueError("steps that grow")
        if self.steps[0] == 100:
            raise ValueError("a first step below 100, which leaves the old arm requests to compare with")
        return self

    @property
    def arm(self) -> Arm:
        return parse_arm(self.to)


@dataclass(frozen=True)
class CanaryStatus:
    """The last canary of a model. `state`: running, promoted, rolled_back or stopped. `reason` of one that was rolled
    back: errors, latency, requests or unavailable."""

    to: str
    state: str
    share: float
    text: str = ""
    reason: str = ""
