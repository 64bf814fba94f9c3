# SPDX-License-Identifier: Apache-2.0
"""The shadow under live traffic: no caller ever notices it, and a fused kernel that is wrong is found and replaced."""

from __future__ import annotations

import json
import threading
import urllib.request

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fused_mlp.service.client import Client
from fused_mlp.service.client.admin import AdminClient
from tests.support.puppet import PuppetService
from tests.support.server import free_port

X = np.ones((3, 64), np.float32)


def compared(puppet: PuppetService, outcome: str = "compared") -> float:
    return puppet.metric("fused_mlp_shadow_batches_total", model="digits", version="1", outcome=outcome)


def test_both_variants_are_timed_and_compared_on_the_same_rows(front: str) -> None:
    with PuppetService(front=front, shadow=1) as puppet, Client(puppet.target) as client:
        assert compared(puppet) == 0
        client.predict("digits", X)
        puppet.wait_for(lambda: compared(puppet) == 1)
        assert puppet.metric("fused_mlp_shadow_rows_total") == 3
        for variant in ("fused", "unfused"):
            assert puppet.metric("fused_mlp_shadow_compute_seconds_count", variant=variant) == 1
            assert puppet.metric("fused_mlp_shadow_compute_seconds_sum", variant=variant) > 0
        # The puppet is eager inside: the same operations in the same order.
        assert puppet.metric("fused_mlp_shadow_max_abs_difference") == 0
        assert puppet.metric("fused_mlp_shadow_mismatches_total") == 0
        # Live traffic alone counts as traffic.
        assert puppet.metric("fused_mlp_batches_total") == 1
        assert len(puppet.kernel.batches) == 2
        np.testing.assert_array_equal(*puppet.kernel.batches)


def test_no_caller_waits_for_the_shadow(front: str) -> None:
    with (
        PuppetService(front=front, variant="unfused", shadow=1) as puppet,
        Client(puppet.target) as client,
    ):
        expected = client.predict("digits", X).output
        puppet.wait_entered()
        puppet.wait_for(lambda: compared(puppet) == 1)
        puppet.hold()  # the fused kernel, which only the shadow runs here, does not return
        client.predict("digits", X)
        puppet.wait_entered()
        for _ in range(20):
            prediction = client.predict("digits", X)
            assert prediction.variant == "unfused"
            np.testing.assert_array_equal(prediction.output, expected)
        # One waits, the rest was skipped and counted; none was refused.
        puppet.wait_for(lambda: compared(puppet, "skipped") == 19)
        assert compared(puppet) == 1
        assert puppet.metric("fused_mlp_requests_total", variant="unfused", code="OK") == 22
        assert puppet.metric("fused_mlp_requests_total", variant="fused") == 0
        puppet.release()
        puppet.wait_for(lambda: compared(puppet) == 3)


class Traffic:
    """Callers that never pause, and what they were told."""

    def __init__(self, target: str, callers: int = 2) -> None:
        self._target = target
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]
        self.failures: list[BaseException] = []
        self.variants: list[str] = []

    def _call(self) -> None:
        with Client(self._target) as client:
            while not self._stopped.is_set():
                try:
                    # Half of the callers name the variant that is withdrawn: they are served too.
                    variant = "fused" if len(self.variants) % 2 else None
                    self.variants.append(client.predict("digits", X, variant=variant).variant)
                except BaseException as error:
                    self.failures.append(error)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def test_a_wrong_fused_kernel_is_replaced_without_one_failed_request(
    front: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"shadow": 0.5, "policy": '{"*": {"on_mismatch": "unfused"}}', "admin_port": free_port()}
    with PuppetService(front=front, **settings) as puppet:
        fallback = {"model": "digits", "version": "1", "reason": "shadow_mismatch"}
        with Traffic(puppet.target) as traffic:
            puppet.wait_for(lambda: compared(puppet) >= 5)
            assert puppet.metric("fused_mlp_variant_fallback", **fallback) == 0
            assert puppet.metric("fused_mlp_shadow_mismatches_total") == 0
            puppet.kernel.error = 0.5
            puppet.wait_for(lambda: puppet.metric("fused_mlp_variant_fallback", **fallback) == 1)
            puppet.wait_for(lambda: traffic.variants[-1] == "unfused")
            changed_at = len(traffic.variants)
            puppet.wait_for(lambda: len(traffic.variants) > changed_at + 20)
        assert traffic.failures == []
        assert traffic.variants[changed_at:].count("fused") <= 1  # the other caller's, which was under way
        assert puppet.metric("fused_mlp_shadow_mismatches_total") >= 1
        assert puppet.metric("fused_mlp_shadow_max_abs_difference") == pytest.approx(0.5, abs=1e-6)
        said = [r.getMessage() for r in caplog.records if "serving UNFUSED from now on" in r.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("digits/1: ")
        check_that_callers_can_tell(puppet)

        # An explicit variant re-enables a withdrawn kernel, which is right again by now.
        puppet.kernel.error = 0.0
        with AdminClient(puppet.admin_target) as admin, Client(puppet.target) as client:
            assert admin.policies("digits")[0].fallbacks[0].reason == "shadow_mismatch"
            assert admin.set_policy("digits", variant="fused")[0].fallbacks == ()
            assert client.predict("digits", X).variant == "fused"
            assert puppet.metric("fused_mlp_variant_fallback") == 0


def check_that_callers_can_tell(puppet: PuppetService) -> None:
    """Healthy, but not as it was: in the metadata of Health.Check, in GetModel and in /status.json."""
    with grpc.insecure_channel(puppet.target) as channel:
        for service in ("", "digits"):
            request = health_pb2.HealthCheckRequest(service=service)
            response, call = health_pb2_grpc.HealthStub(channel).Check.with_call(request)
            assert response.status == health_pb2.HealthCheckResponse.SERVING
            assert ("fused-mlp-fallback", "digits/1 shadow_mismatch") in call.trailing_metadata()
    with Client(puppet.target) as client:
        described = client.model("digits").version()
        assert described.variant == "unfused"
        assert "fused is withdrawn: fused and unfused differ by 0.5" in described.reason
    url = f"http://127.0.0.1:{puppet.service.metrics_port}/status.json"
    with urllib.request.urlopen(url, timeout=10) as response:
        status = json.load(response)
    (version,) = status["models"][0]["versions"]
    assert (version["variant"], version["fallback"]["reason"]) == ("unfused", "shadow_mismatch")
    assert status["models"][0]["policy"]["variant"] == "fused"


def test_a_mismatch_is_logged_once_and_served_on_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with PuppetService(shadow=1) as puppet, Client(puppet.target) as client:
        puppet.kernel.error = 0.5
        for count in range(1, 4):
            assert client.predict("digits", X).variant == "fused"
            puppet.wait_for(lambda: puppet.metric("fused_mlp_shadow_mismatches_total") == count)  # noqa: B023
        assert puppet.metric("fused_mlp_variant_fallback") == 0
        puppet.wait_for(lambda: "MISMATCH" in caplog.text)
        assert sum("MISMATCH" in record.getMessage() for record in caplog.records) == 1
