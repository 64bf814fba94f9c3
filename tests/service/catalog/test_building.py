# SPDX-License-Identifier: Apache-2.0
"""What the builder tells the engine about a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from fused_mlp import kernels
from fused_mlp.kernels import Kernel
from fused_mlp.service.catalog.ledger import Ledger
from fused_mlp.service.catalog.records import ServedVersion
from fused_mlp.service.catalog.versions.building import KernelBuilder
from fused_mlp.service.policy.policy import Policy
from fused_mlp.service.settings.environment import load_settings
from tests.kernels.cuda.random_models import make_mlp, make_spec


class RecordingEngine:
    def __init__(self) -> None:
        self.lanes: list[dict[str, Any]] = []

    def add_lane(self, **given: Any) -> object:
        self.lanes.append(given)
        return object()


@pytest.mark.parametrize(
    ("device", "threads", "one_core"),
    [("cpu", 1, True), ("cpu", 2, False), ("cuda:0", 1, False), ("cuda:all", 1, False)],
)
def test_only_a_kernel_on_one_core_has_its_backlog_shared_between_workers(
    device: str, threads: int, one_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device is not slowed down by one large batch, but by many small ones."""
    mlp = make_mlp(make_spec((5, 7, 3)))
    compile_kernel = kernels.compile

    def on_device(*_: object, **__: object) -> Kernel:
        kernel = compile_kernel(mlp, threads=threads)
        kernel._info = replace(kernel.describe(), device=device, threads=threads)
        return kernel

    monkeypatch.setattr(kernels, "compile", on_device)
    engine = RecordingEngine()
    served = ServedVersion("m", 1, "READY", "", spec=mlp.spec, weights=cast("Any", object()))
    KernelBuilder(load_settings(), cast("Any", engine), Ledger(lambda _: True)).with_kernels(
        served, Policy(), mlp
    )
    assert [lane["one_core"] for lane in engine.lanes] == [one_core]
