# SPDX-License-Identifier: Apache-2.0
"""Kernels are built when a policy can reach them: at load, or when the policy changes, without disturbing traffic."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from fused_mlp import kernels
from fused_mlp.kernels import Backend, Kernel, KernelUnavailable, registry
from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.service.app import Service
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from fused_mlp.service.settings.environment import load_settings
from tests.support.puppet import PuppetService
from tests.support.server import free_port

X = np.ones((1, 64), np.float32)
INSTALL = r"the unfused variant needs torch, which is not installed: make install"


@pytest.fixture
def puppet(front: str) -> Iterator[PuppetService]:
    with PuppetService(front=front, admin_port=free_port()) as running:
        yield running


@pytest.fixture
def admin(puppet: PuppetService) -> Iterator[AdminClient]:
    with AdminClient(puppet.admin_target) as connected:
        yield connected


@pytest.fixture
def client(puppet: PuppetService) -> Iterator[Client]:
    with Client(puppet.target) as connected:
        yield connected


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as `import torch` sees it where it is not installed


def load(**settings: object) -> Service:
    service = Service(load_settings(**settings))
    service.catalog.scan()
    service.catalog.load_all()
    return service


def built(client: Client) -> list[str]:
    return [kernel.variant for kernel in client.model("digits").version().kernels]


@pytest.mark.parametrize(
    ("policy", "variants"),
    [
        ({}, ["fused"]),
        ({"variant": "unfused"}, ["unfused"]),
        ({"policy": '{"*": {"on_mismatch": "unfused"}}'}, ["fused"]),
        ({"split": 0.1}, ["fused", "unfused"]),
        ({"allow_override": True}, ["fused", "unfused"]),
        ({"variant": "unfused", "shadow": 0.01}, ["fused", "unfused"]),
    ],
)
def test_only_what_the_policy_can_reach_is_built(policy: dict[str, object], variants: list[str]) -> None:
    service = load(**policy)
    try:
        served = service.catalog.find("digits")
        assert list(served.lanes) == [info.variant for info in served.kernels] == variants
        assert (served.shadow is not None) == (len(variants) == 2)
    finally:
        service.close()


def test_a_changed_policy_builds_what_it_needs_and_keeps_the_counts(
    puppet: PuppetService, admin: AdminClient, client: Client
) -> None:
    assert built(client) == ["fused"]
    client.predict("digits", X)
    admin.set_policy("digits", shadow=1)
    assert built(client) == ["fused", "unfused"]
    # The fused lane has had traffic already: from now on it is compared too.
    client.predict("digits", X)
    compared = {"model": "digits", "outcome": "compared"}
    puppet.wait_for(lambda: puppet.metric("fused_mlp_shadow_batches_total", **compared) == 1)
    assert puppet.metric("fused_mlp_requests_total", variant="fused", code="OK") == 2
    unfused = puppet.lane("unfused")
    admin.set_policy("digits", shadow=0)
    admin.set_policy("digits", variant="unfused")
    assert client.predict("digits", X).variant == "unfused"
    assert puppet.lane("unfused") is unfused


def test_fused_is_built_when_a_policy_first_asks_for_it() -> None:
    service = load(variant="unfused")
    try:
        assert list(service.catalog.find("digits").lanes) == ["unfused"]
        service.catalog.set_policy({"variant": "fused"})
        served = service.catalog.find("digits")
        assert (list(served.lanes), served.variant) == (["fused", "unfused"], "fused")
    finally:
        service.close()


def test_requests_are_answered_while_a_kernel_is_built(
    puppet: PuppetService, admin: AdminClient, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    (eager,) = kernels.backends("unfused", "cpu")

    def build(mlp: Mlp, threads: int | None) -> Kernel:
        entered.set()
        assert release.wait(60)
        return eager.build(mlp, threads)

    slow = Backend("slow", "unfused", "cpu", 9, lambda _: None, build)
    monkeypatch.setattr(registry, "_BACKENDS", [slow, *registry._BACKENDS])
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(admin.set_policy, "digits", split=1.0)
        assert entered.wait(30)
        try:
            assert client.predict("digits", X).variant == "fused"
            assert client.health() == "SERVING"  # the asyncio loop is free
            assert puppet.service.catalog.policy("digits").split == 0
            # A change that needs no new kernel does not wait for the one that does.
            puppet.service.catalog.set_policy({"on_mismatch": "unfused"})
        finally:
            release.set()
        (changed,) = change.result(60)
    assert (changed.split, changed.on_mismatch) == (1.0, "unfused")
    assert client.predict("digits", X).variant == "unfused"


def test_without_torch_a_policy_that_needs_it_is_refused_and_nothing_changes(
    admin: AdminClient,
    client: Client,
    no_torch: None,  # last: the puppet itself is made with torch
) -> None:
    before = admin.policies()
    for change in ({"variant": "unfused"}, {"split": 0.1}, {"allow_override": True}, {"shadow": 1.0}):
        for model in ("digits", ""):
            with pytest.raises(PredictError, match=INSTALL) as refused:
                admin.set_policy(model, **change)
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert admin.policies() == before
    assert built(client) == ["fused"]
    assert client.predict("digits", X).variant == "fused"
    assert admin.set_policy("digits", on_mismatch="unfused")[0].on_mismatch == "unfused"


@pytest.mark.usefixtures("no_torch")
def test_without_torch_a_server_whose_policy_needs_it_does_not_start() -> None:
    with pytest.raises(KernelUnavailable, match=INSTALL):
        load(split=0.1)


@pytest.mark.usefixtures("no_torch")
def test_without_torch_a_version_without_fused_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Backend("broken", "fused", "cpu", 9, lambda _: "no such instruction", lambda *_: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(registry, "_BACKENDS", [broken, *kernels.backends("unfused")])
    with pytest.raises(ModelLoadError, match=f"no such instruction.*{INSTALL}"):
        load()
