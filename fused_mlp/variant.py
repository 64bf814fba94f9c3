# SPDX-License-Identifier: Apache-2.0
"""The two ways to run a model version."""

from __future__ import annotations

from typing import Literal, get_args

Variant = Literal["fused", "unfused"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
