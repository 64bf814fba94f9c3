# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from tests.ray.cluster import Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    started.stop()
