# SPDX-License-Identifier: Apache-2.0
"""Arms: a version and a variant. Policies, commands, clients and the engine (service/csrc/engine/route/arm.hpp) write
them in the same way."""

from __future__ import annotations

import re
from typing import NamedTuple, cast

from fused_mlp.variant import VARIANTS, Variant

LATEST, PREVIOUS = "latest", "previous"  # the highest version that can answer, and the next lower one
EXPECTED = "a version or a label, a variant, or both, as in 3/fused, stable or unfused"

_LABEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class Arm(NamedTuple):
    """`version`: a number as text, LATEST, PREVIOUS or a label of the policy; empty: the default version. `variant`:
    None for the variant of the policy."""

    version: str = ""
    variant: Variant | None = None

    def __str__(self) -> str:
        return "/".join(part for part in (self.version, self.variant) if part)


def parse_arm(text: str) -> Arm:
    """Raises ValueError."""
    if text in VARIANTS:
        return Arm("", text)
    version, slash, variant = text.partition("/")
    if not is_version(version) or (slash and variant not in VARIANTS):
        raise ValueError(f"expected {EXPECTED}, got {text[:100]!r}")
    return Arm(version, cast("Variant", variant) if slash else None)


def is_version(text: str) -> bool:
    """Whether the text can name a version."""
    return _is_number(text) or is_label(text)


def is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None and text not in VARIANTS


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 2**63
