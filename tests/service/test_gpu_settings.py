# SPDX-License-Identifier: Apache-2.0
"""The setting that only a GPU feels reaches the kernels: on a CPU, by what it switches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32, set_tf32
from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.settings.environment import load_settings


@pytest.fixture
def loaded() -> Iterator[Catalog]:
    """The demo models under TF32; torch's switch is put back."""
    settings = load_settings(tf32=True, device="cpu")
    engine = _engine.Engine(workers=1)
    catalog = Catalog(settings, engine, _engine.Router())
    catalog.scan()
    catalog.load_all()
    yield catalog
    engine.stop()
    set_tf32(False)


@pytest.mark.usefixtures("loaded")
def test_tf32_reaches_the_kernels() -> None:
    assert multiplies_in_tf32()


def test_tf32_changes_nothing_on_a_cpu(loaded: Catalog) -> None:
    assert torch.backends.mkldnn.matmul.fp32_precision != "tf32"
    for model in loaded.models():
        assert {info.dtype for version in model.versions for info in version.kernels} == {"float32"}


def test_tf32_is_off_unless_asked_for() -> None:
    assert load_settings().tf32 is False
