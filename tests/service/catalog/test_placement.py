"""Which GPU a model is built on; no GPU is needed to tell."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from fused_mlp.kernels import Kernel, KernelInfo, KernelUnavailable, registry
from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.replicas import ReplicatedKernel
from fused_mlp.service.catalog import placement
from fused_mlp.service.catalog.placement import build_placed
from fused_mlp.service.settings.settings import SettingsError, load_settings
from tests.kernels.cuda.random_models import make_spec

INFO = KernelInfo("fused", "triton", "cuda", "whole/16", "sm_80", "float32", 1, "why")


class Held(Kernel):
    """Runs until it is released."""

    def __init__(self, device: str) -> None:
        super().__init__(make_spec((2, 2)), replace(INFO, device=device))
        self.gate, self.entered = threading.Event(), threading.Event()

    def run(self, x: Float32, y: Float32) -> str:
        self.entered.set()
        assert self.gate.wait(30)
        return self._info.device


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10 << 30, 30 << 30, 20 << 30]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 40 << 30))
    monkeypatch.setattr(registry, "default_device", lambda: "cuda")
    monkeypatch.setattr(placement, "default_device", lambda: "cuda")


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("device", "built"),
    [("cpu", ["cpu"]), ("cuda:2", ["cuda:2"]), ("cuda", ["cuda:1"]), ("auto", ["cuda:1"]),
     ("cuda:all", ["cuda:0", "cuda:1", "cuda:2"])],
)  # fmt: skip
def test_model_is_where_the_setting_says_or_most_memory_is_free(device: str, built: list[str]) -> None:
    asked: list[str] = []
    kernel = build_placed(device, lambda name: asked.append(name) or Held(name))
    assert asked == built
    assert kernel.describe().device == "+".join(built)


@pytest.mark.usefixtures("gpus")
def test_auto_may_still_choose_the_cpu() -> None:
    def build(device: str) -> Kernel:
        if device != "auto":
            raise KernelUnavailable("no room on the GPU")
        return Held("cpu")

    assert build_placed("auto", build).describe().device == "cpu"
    with pytest.raises(KernelUnavailable):
        build_placed("cuda", build)


def test_one_gpu_or_none_is_left_to_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "default_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1, 2))
    for device, built in (("auto", "auto"), ("cuda", "cuda"), ("cuda:all", "cuda")):
        assert build_placed(device, Held).describe().device == built


def test_batch_runs_on_the_replica_with_the_fewest() -> None:
    replicas = [Held("cuda:0"), Held("cuda:1")]
    kernel = ReplicatedKernel(replicas)
    assert kernel.memory_bytes == 2 * replicas[0].memory_bytes
    assert kernel.describe().reason == "why; on cuda:1: strategy whole/16"
    x = np.zeros((1, 2), np.float32)
    ran: list[str] = []
    first = threading.Thread(target=lambda: ran.append(kernel.run(x, x)))
    first.start()
    assert replicas[0].entered.wait(30)
    replicas[1].gate.set()
    assert [kernel.run(x, x) for _ in range(3)] == ["cuda:1"] * 3  # one after the other
    replicas[0].gate.set()
    first.join()
    assert kernel.run(x, x) == ran[0] == "cuda:0"


def test_device_that_makes_no_sense_is_refused_at_start() -> None:
    for device in ("cuda:1", "cuda:all"):
        assert load_settings(device=device).device == device
    for device in ("gpu", "cuda:", "cuda:x", "cpu:0"):
        with pytest.raises(
            SettingsError, match=r"FUSED_MLP_DEVICE=.*expected auto, cpu, cuda, cuda:N or cuda:all"
        ):
            load_settings(device=device)
