# SPDX-License-Identifier: Apache-2.0
"""What a server says where the native front cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

import fused_mlp.service
from fused_mlp.service.fronts.selection import native_front_problem

NATIVE_FRONT = "fused_mlp.service._front"


class NotBuilt:
    """Finds every module but the native front, as in a build without it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == NATIVE_FRONT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_build_without_the_native_front_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, NATIVE_FRONT, raising=False)
    monkeypatch.delattr(fused_mlp.service, "_front", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NotBuilt(), *sys.meta_path])

    assert native_front_problem() == (
        "the native front was not built; install libnghttp2-dev, libssl-dev and zlib1g-dev, then build again"
    )
