# SPDX-License-Identifier: Apache-2.0
"""The pictures of the docs: which models they show."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_repository_has_the_models_that_have_traffic_and_no_others(tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    from bench.screenshots import INPUTS, make_models

    repository = make_models(tmp_path / "models")
    assert {path.name for path in repository.iterdir()} == set(INPUTS)
