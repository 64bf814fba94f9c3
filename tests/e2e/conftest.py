# SPDX-License-Identifier: Apache-2.0
"""What tests of policies share: a service in this process, its admin port and a channel to it. A module says which
service by a fixture `settings`."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from fused_mlp.service.client.admin import AdminClient
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.puppet import PuppetService
from tests.support.server import free_port


@pytest.fixture(scope="module")
def puppet(front: str, settings: dict[str, object]) -> Iterator[PuppetService]:
    with PuppetService(front=front, admin_port=free_port(), **settings) as running:
        yield running
    if (file := running.service.catalog.policies.file) is not None:
        file.path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def admin(puppet: PuppetService) -> Iterator[AdminClient]:
    with AdminClient(puppet.admin_target) as connected:
        yield connected


@pytest.fixture(scope="module")
def channel(puppet: PuppetService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(puppet.target) as connected:
        yield connected


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def otel(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment in which servers export to the receiver, at once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    return monkeypatch
