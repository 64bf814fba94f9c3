# SPDX-License-Identifier: Apache-2.0
"""Which variant answers: split, override and changes at run time, by both APIs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service import _engine
from fused_mlp.service.client import PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.support.puppet import PuppetService

SPLIT = 0.25
X = np.ones((1, 64), np.float32)
NAMES = {fm.FUSED: "fused", fm.UNFUSED: "unfused"}


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {}


@pytest.fixture(autouse=True)
def _as_it_was(admin: AdminClient) -> Iterator[None]:
    yield
    admin.set_policy(variant="fused", split=0, allow_override=False, shadow=0, on_mismatch="log")


def predict(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> str:
    request = fm.PredictRequest(model="digits", input=fm.Tensor(shape=X.shape, data=X.tobytes()), **fields)
    return NAMES[Stub(channel, fm, "Inference").Predict(request, metadata=metadata, timeout=30).variant]


def infer(
    channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = (), variant: str = "", **fields: object
) -> str:
    request = oip.ModelInferRequest(model_name="digits", raw_input_contents=[X.tobytes()], **fields)
    request.inputs.add(name="input", datatype="FP32", shape=X.shape)
    if variant:
        request.parameters["variant"].string_param = variant
    response = Stub(channel, oip, "GRPCInferenceService").ModelInfer(request, metadata=metadata, timeout=30)
    return response.parameters["variant"].string_param


def falls_to_unfused(key: str) -> bool:
    """The documented rule, as a caller would work it out."""
    return _engine.hash_key(key) < SPLIT * 2**64


def test_requests_without_a_key_are_split_exactly(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("digits", split=SPLIT)
    answered = [predict(channel) if i % 2 else infer(channel) for i in range(40)]
    assert Counter(answered) == {"fused": 30, "unfused": 10}
    # And evenly: every four in a row have one.
    assert all(answered[i : i + 4].count("unfused") == 1 for i in range(37))


def test_a_key_is_sticky_on_both_apis(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("digits", split=SPLIT)
    keys = [f"user-{i}" for i in range(24)]
    expected = {key: "unfused" if falls_to_unfused(key) else "fused" for key in keys}
    assert set(expected.values()) == {"fused", "unfused"}
    for key, variant in expected.items():
        metadata = (("x-ab-key", key),)
        assert predict(channel, metadata, request_id="another") == variant
        assert infer(channel, metadata, id="another") == variant


def test_without_a_key_the_request_id_decides(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("digits", split=SPLIT)
    for i in range(24):
        variant = "unfused" if falls_to_unfused(f"id-{i}") else "fused"
        assert predict(channel, request_id=f"id-{i}") == variant
        assert infer(channel, id=f"id-{i}") == variant


def test_messages_of_a_stream_share_the_key_of_their_call(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("digits", split=SPLIT)
    unfused = next(key for key in (f"user-{i}" for i in range(100)) if falls_to_unfused(key))
    requests = [
        fm.PredictRequest(model="digits", input=fm.Tensor(shape=X.shape, data=X.tobytes()), request_id=str(i))
        for i in range(8)
    ]
    stream = Stub(channel, fm, "Inference").PredictStream(
        iter(requests), metadata=(("x-ab-key", unfused),), timeout=30
    )
    assert {NAMES[response.variant] for response in stream} == {"unfused"}


WISHES = {
    "predict field": lambda channel: predict(channel, variant=fm.UNFUSED),
    "predict metadata": lambda channel: predict(channel, (("x-fused-mlp-variant", "unfused"),)),
    "infer parameter": lambda channel: infer(channel, variant="unfused"),
    "infer metadata": lambda channel: infer(channel, (("x-fused-mlp-variant", "unfused"),)),
}


@pytest.mark.parametrize("how", WISHES)
def test_override_is_refused_unless_it_is_allowed(
    channel: grpc.Channel, admin: AdminClient, how: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        WISHES[how](channel)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "FUSED_MLP_ALLOW_OVERRIDE=1" in refused.value.details()
    admin.set_policy("digits", allow_override=True, split=0)
    assert WISHES[how](channel) == "unfused"


def test_naming_the_variant_that_serves_is_no_override(channel: grpc.Channel) -> None:
    assert predict(channel, variant=fm.FUSED) == "fused"
    assert infer(channel, (("x-fused-mlp-variant", "fused"),)) == "fused"


def test_override_goes_before_the_split_and_the_message_before_its_metadata(
    channel: grpc.Channel, admin: AdminClient
) -> None:
    admin.set_policy("digits", split=1, allow_override=True)
    assert predict(channel) == "unfused"
    assert predict(channel, variant=fm.FUSED) == "fused"
    assert infer(channel, (("x-fused-mlp-variant", "fused"), ("x-ab-key", "a"))) == "fused"
    assert predict(channel, (("x-fused-mlp-variant", "unfused"),), variant=fm.FUSED) == "fused"


@pytest.mark.parametrize("call", [predict, infer])
def test_a_variant_that_does_not_exist_is_named(channel: grpc.Channel, call) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, (("x-fused-mlp-variant", "fast"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "x-fused-mlp-variant: expected fused or unfused, got 'fast'"
    with pytest.raises(grpc.RpcError) as refused:
        infer(channel, variant="fast")
    assert refused.value.details() == "parameters: expected variant fused or unfused, got 'fast'"
    assert call(channel) == "fused"


def test_policy_is_changed_in_part_and_read_back(puppet: PuppetService, admin: AdminClient) -> None:
    (changed,) = admin.set_policy("digits", split=0.1, on_mismatch="unfused")
    assert (changed.variant, changed.split, changed.on_mismatch) == ("fused", 0.1, "unfused")
    (changed,) = admin.set_policy("digits", shadow=0.5)
    assert (changed.split, changed.shadow) == (0.1, 0.5)
    default, digits = admin.policies()
    assert (default.model, default.split) == ("", 0)
    assert digits == changed == admin.policies("digits")[0]
    assert puppet.metric("fused_mlp_policy_info", model="digits", variant="fused", on_mismatch="unfused") == 1
    assert puppet.metric("fused_mlp_policy_split_ratio", model="digits") == 0.1
    assert puppet.metric("fused_mlp_policy_shadow_ratio", model="digits") == 0.5
    assert puppet.metric("fused_mlp_policy_allow_override", model="digits") == 0
    default, digits = admin.set_policy(allow_override=True)
    assert (default.allow_override, digits.allow_override, digits.split) == (True, True, 0.1)


def test_a_policy_that_cannot_be_is_refused_and_changes_nothing(admin: AdminClient) -> None:
    before = admin.policies()
    for changes, text in (
        ({"split": 1.5, "variant": "unfused"}, "split: expected less than or equal to 1, got 1.5"),
        ({"shadow": float("nan")}, "shadow: expected"),
        ({}, "expected at least one of variant, split"),
    ):
        with pytest.raises(PredictError, match=text) as refused:
            admin.set_policy(**changes)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(PredictError, match="model 'nope' is not served here"):
        admin.set_policy("nope", split=0.1)
    assert admin.policies() == before


def test_policy_changes_under_load_lose_nothing(
    puppet: PuppetService, channel: grpc.Channel, admin: AdminClient
) -> None:
    before = puppet.metric("fused_mlp_requests_total", code="OK")
    stopped = threading.Event()
    answered: list[Counter[str]] = []

    def call_until_stopped() -> None:
        variants: Counter[str] = Counter()
        while not stopped.is_set():
            variants[predict(channel)] += 1  # an error ends the thread, and the counts below differ
        answered.append(variants)

    threads = [threading.Thread(target=call_until_stopped) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(60):
        variant = ("fused", "unfused")[i % 2]
        admin.set_policy(variant=variant, split=i % 10 / 10, shadow=i % 3 / 4)
    stopped.set()
    for thread in threads:
        thread.join()
    assert len(answered) == 4
    total = sum(answered, Counter())
    assert total["fused"] > 0
    assert total["unfused"] > 0
    assert puppet.metric("fused_mlp_requests_total", code="OK") - before == total.total()
    assert puppet.metric("fused_mlp_in_flight") == 0
