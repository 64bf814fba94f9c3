# SPDX-License-Identifier: Apache-2.0
"""Variants by name, as the rest of the program knows them, and by number, as messages hold them."""

from __future__ import annotations

from fused_mlp.protos import fused_mlp_pb2 as pb


def variant_number(name: str) -> pb.Variant:
    """Raises ValueError for any other name than fused and unfused."""
    number: pb.Variant = pb.Variant.Value(name.upper())
    return number


def variant_name(number: pb.Variant) -> str:
    return str(pb.Variant.Name(number)).lower()
