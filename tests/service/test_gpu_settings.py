"""The settings that only a GPU feels reach the kernels: on a CPU, by what they switch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fused_mlp.kernels.cuda.tf32 import multiplies_in_tf32, set_tf32
from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.settings.settings import load_settings


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Catalog]:
    """The demo models under TF32 and a kernel cache; torch's switch is put back."""
    for name in ("FUSED_MLP_KERNEL_CACHE", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "before")  # and back to what it was when the test ends
    settings = load_settings(tf32=True, kernel_cache=tmp_path, device="cpu")
    engine = _engine.Engine(workers=1)
    catalog = Catalog(settings, engine, _engine.Router())
    catalog.scan()
    catalog.load_all()
    yield catalog
    engine.stop()
    set_tf32(False)


@pytest.mark.usefixtures("loaded")
def test_tf32_and_kernel_cache_reach_the_kernels(tmp_path: Path) -> None:
    assert multiplies_in_tf32()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path)


def test_tf32_changes_nothing_on_a_cpu(loaded: Catalog) -> None:
    assert torch.backends.mkldnn.matmul.fp32_precision != "tf32"
    for model in loaded.models():
        assert {info.dtype for version in model.versions for info in version.kernels} == {"float32"}


def test_tf32_is_off_unless_asked_for() -> None:
    assert load_settings().tf32 is False
