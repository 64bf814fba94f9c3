# SPDX-License-Identifier: Apache-2.0
"""Which GPU a model is built on; no GPU is needed to tell."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fused_mlp import kernels
from fused_mlp.kernels import Backend, Kernel, KernelError, KernelInfo, KernelUnavailable, Variant, registry
from fused_mlp.kernels.base import Float32
from fused_mlp.kernels.cuda.running import device_memory
from fused_mlp.kernels.replicas import ReplicatedKernel
from fused_mlp.models import Mlp
from fused_mlp.service import _engine
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.versions import placement
from fused_mlp.service.catalog.versions.placement import build_placed, choose_devices
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import SettingsError
from tests.kernels.cuda.random_models import make_mlp, make_spec

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


class Named(Kernel):
    """Answers nothing; says which device it was built for."""

    def __init__(self, mlp: Mlp, variant: Variant, device: str) -> None:
        super().__init__(mlp.spec, replace(INFO, variant=variant, device=device))

    def run(self, x: Float32, y: Float32) -> str:
        y[...] = 0
        return ""


FREE = [10 << 30, 30 << 30, 20 << 30]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(FREE))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (FREE[index], 40 << 30))
    monkeypatch.setattr(device_memory, "LIBRARY", "no such library")
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
    likes: list[Kernel | None] = []

    def build(name: str, like: Kernel | None) -> Kernel:
        asked.append(name)
        likes.append(like)
        return Held(name)

    kernel = build_placed(device, choose_devices(device), build)
    assert asked == built
    assert [like and like.describe().device for like in likes] == [None] + ["cuda:0"] * (len(built) - 1)
    assert kernel.describe().device == "+".join(built)


@pytest.mark.usefixtures("gpus")
def test_version_stays_on_the_gpu_where_it_has_a_kernel() -> None:
    assert choose_devices("auto", ["cuda:2"]) == ("cuda:2",)
    assert choose_devices("cuda", ["cpu"]) == ("cuda:1",)  # one that fell back there
    assert choose_devices("cuda:0", ["cuda:2"]) == ("cuda:0",)


@pytest.mark.usefixtures("gpus")
def test_variants_of_a_version_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first of them has taken the memory that made its GPU the choice."""
    free = list(FREE)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 40 << 30))
    asked: list[str] = []

    def compiled(mlp: Mlp, *, variant: Variant, device: str, **_: object) -> Kernel:
        asked.append(device)
        free[int(device[-1])] -= 15 << 30
        return Named(mlp, variant, device)

    monkeypatch.setattr(kernels, "compile", compiled)
    settings = load_settings(device="cuda", shadow=0.5)
    engine = _engine.Engine(workers=1)
    catalog = Catalog(settings, engine, _engine.Router())
    catalog.scan()
    catalog.load_all()
    engine.stop()
    assert asked[:2] == ["cuda:1", "cuda:1"]


@pytest.mark.usefixtures("gpus")
def test_free_memory_is_asked_without_a_context_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text("""
        #include <string.h>
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
          if (strncmp(uuid, "GPU-known-", 10)) return 6;
          *device = (void*)(long)(uuid[10] - '0' + 1);
          return 0;
        }
        int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
          memory[0] = 100; memory[1] = 7 * (unsigned long long)device; memory[2] = 0;
          return 0;
        }
    """)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(device_memory, "LIBRARY", str(library))
    uuids = ["known-0", "known-1", "known-2"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    assert device_memory.free_bytes() == [7, 14, 21]
    uuids[1] = "a part of a GPU"
    assert device_memory.free_bytes() == FREE


@pytest.mark.usefixtures("gpus")
def test_auto_may_still_choose_the_cpu() -> None:
    def build(device: str, _: Kernel | None) -> Kernel:
        if device != "auto":
            raise KernelUnavailable("no room on the GPU")
        return Held("cpu")

    assert build_placed("auto", choose_devices("auto"), build).describe().device == "cpu"
    with pytest.raises(KernelUnavailable):
        build_placed("cuda", choose_devices("cuda"), build)


@pytest.mark.usefixtures("gpus")
def test_one_gpu_or_none_is_left_to_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for device, built in (("auto", "auto"), ("cuda", "cuda"), ("cuda:all", "cuda")):
        assert choose_devices(device) == (built,)


@pytest.mark.usefixtures("gpus")
def test_replica_has_the_strategy_of_the_first_unless_it_cannot_run_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each GPU would time for itself, and might choose a tile that sums in another order."""
    strategies: list[str | None] = []

    def build(mlp: Mlp, threads: int | None, strategy: str | None = None) -> Kernel:
        strategies.append(strategy)
        if strategy == "whole/32":
            raise KernelError("strategy whole/32: expected one of whole/16")
        return Named(mlp, "fused", "cuda:1")

    triton = Backend("triton", "fused", "cuda", 100, lambda mlp: None, build)
    monkeypatch.setattr(registry, "_BACKENDS", [triton])
    monkeypatch.setattr(registry, "check", lambda kernel, mlp: None)
    monkeypatch.setattr("fused_mlp.kernels.cuda.backend.build_triton", build)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    mlp = make_mlp(make_spec((2, 2)))
    registry.compile_like(Held("cuda:0"), mlp, "cuda:1")
    assert strategies == ["whole/16"]
    assert caplog.text == ""
    first = Held("cuda:0")
    first._info = replace(first._info, strategy="whole/32")
    registry.compile_like(first, mlp, "cuda:1")
    assert strategies[1:] == ["whole/32", None]
    assert "cuda:1 does not run whole/32" in caplog.text


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
