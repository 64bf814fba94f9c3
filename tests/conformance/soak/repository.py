# SPDX-License-Identifier: Apache-2.0
"""What the soak serves: models that stay, a big one beside a small one; one whose versions change; one that comes and
goes."""

from __future__ import annotations

from pathlib import Path

from fused_mlp.kernels.profile import random_mlp
from fused_mlp.models import save
from tests.support.server import demo_copy

SMALL = "digits"  # 64-128-128-10
BIG, BIG_WIDTH = "big", 1024
RELOADED, RELOADED_WIDTH = "reloaded", 64
PASSING, PASSING_WIDTH = "passing", 784
# Their counters last as long as the server, whether they are loaded or not; those of RELOADED's second version go with
# its folder.
STAYING = (SMALL, BIG, PASSING)


def make_repository(root: Path) -> Path:
    """`root`/models, and beside it the second version of RELOADED, which is moved in and out."""
    models = demo_copy(root / "models")
    save(random_mlp([BIG_WIDTH, 4096, 1024]), models / BIG / "1")
    save(random_mlp([PASSING_WIDTH, 512, 256, 10]), models / PASSING / "1")
    for path in (models / RELOADED / "1", second_version(root)):
        save(random_mlp([RELOADED_WIDTH, 128, 128, 10]), path)
    return models


def second_version(root: Path) -> Path:
    return root / "reloaded-2"
