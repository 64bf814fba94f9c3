# SPDX-License-Identifier: Apache-2.0
"""Field types of policies: shares, and names of versions, labels and arms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from fused_mlp.service.policy.arm import LATEST, PREVIOUS, is_label, is_version, parse_arm


def _as_text(name: Any) -> Any:
    """In JSON a version may be a number: {"version": 2}."""
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


def _check_version(name: str) -> str:
    if not is_version(name):
        raise ValueError(f"a version, {LATEST}, {PREVIOUS} or a label")
    return name


def _check_label(name: str) -> str:
    if not is_label(name) or name in (LATEST, PREVIOUS):
        raise ValueError(
            f"a label of a to z, 0 to 9, _, - and . other than {LATEST}, {PREVIOUS} and the variants"
        )
    return name


def _check_arm(name: str) -> str:
    return str(parse_arm(name))


Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
VersionName = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_version)]
Label = Annotated[str, AfterValidator(_check_label)]
ArmName = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_arm)]
