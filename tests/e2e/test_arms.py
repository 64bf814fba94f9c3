# SPDX-License-Identifier: Apache-2.0
"""Arms of several versions: shares, labels, requests that name an arm, and policies that are kept; by both
APIs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from fused_mlp.models import save
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service import _engine
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.kernels.cuda.random_models import make_mlp, make_spec
from tests.support.fronts import both_fronts
from tests.support.puppet import PuppetService
from tests.support.server import free_port

X = np.ones((1, 4), np.float32)


def make_repository(root: Path) -> Path:
    for version in (1, 2, 3):
        save(make_mlp(make_spec((4, 8, 3)), seed=version), root / "m" / str(version))
    save(make_mlp(make_spec((5, 8, 3))), root / "wide" / "1")
    save(make_mlp(make_spec((4, 8, 3))), root / "wide" / "2")
    return root


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    root = make_repository(tmp_path_factory.mktemp("repository"))
    return {"backend": "auto", "model_repository": root}


@pytest.fixture(autouse=True)
def _as_it_was(admin: AdminClient) -> Iterator[None]:
    yield
    admin.set_policy(
        version="latest", variant="fused", split=0, arms={}, labels={}, allow_override=False, weight=1
    )


def predict(channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = (), **fields: object) -> str:
    request = fm.PredictRequest(
        **{"model": "m", "input": fm.Tensor(shape=X.shape, data=X.tobytes()), **fields}
    )
    answer = Stub(channel, fm, "Inference").Predict(request, metadata=metadata, timeout=30)
    return f"{answer.version}/{fm.Variant.Name(answer.variant).lower()}"


def infer(
    channel: grpc.Channel,
    metadata: tuple[tuple[str, str], ...] = (),
    arm: str = "",
    variant: str = "",
    **fields: object,
) -> str:
    request = oip.ModelInferRequest(model_name="m", raw_input_contents=[X.tobytes()], **fields)
    request.inputs.add(name="input", datatype="FP32", shape=X.shape)
    for name, value in {"arm": arm, "variant": variant}.items():
        if value:
            request.parameters[name].string_param = value
    answer = Stub(channel, oip, "GRPCInferenceService").ModelInfer(request, metadata=metadata, timeout=30)
    return f"{answer.model_version}/{answer.parameters['variant'].string_param}"


CALLS = pytest.mark.parametrize("call", [predict, infer])


def test_the_default_arm_is_a_version_and_a_variant(channel: grpc.Channel, admin: AdminClient) -> None:
    assert predict(channel) == "3/fused"
    for version, answers in (("previous", "2/fused"), ("1", "1/fused"), ("latest", "3/fused")):
        (changed,) = admin.set_policy("m", version=version)
        assert changed.version == version
        assert predict(channel) == infer(channel) == answers
        told = Stub(channel, fm, "Inference").GetModel(fm.GetModelRequest(model="m")).model
        assert told.default_version == int(answers[0])
    admin.set_policy("m", version="stable", variant="unfused", labels={"stable": 2})
    assert predict(channel) == infer(channel) == "2/unfused"


def test_arms_have_exact_shares_of_requests_without_a_key(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("m", version=1, arms={"2/fused": 0.25, "latest": 0.25})
    answered = [predict(channel) if i % 2 else infer(channel) for i in range(40)]
    assert Counter(answered) == {"1/fused": 20, "2/fused": 10, "3/fused": 10}
    assert predict(channel, version=1) == "1/fused"


def test_growing_a_share_moves_only_the_callers_that_it_must(
    channel: grpc.Channel, admin: AdminClient
) -> None:
    keys = [f"user-{i}" for i in range(60)]

    def answers() -> dict[str, str]:
        return {key: predict(channel, (("x-ab-key", key),)) for key in keys}

    admin.set_policy("m", version=1, arms={"2": 0.2, "3": 0.2})
    before = answers()
    admin.set_policy("m", arms={"2": 0.2, "3": 0.6})
    after = answers()
    moved = {(before[key], after[key]) for key in keys if before[key] != after[key]}
    assert moved == {("1/fused", "3/fused")}
    # The documented rule, as a caller would work it out.
    for key in keys:
        hash_ = _engine.hash_key(key)
        expected = 2 if hash_ < 0.2 * 2**64 else 3 if hash_ >= (1 - 0.6) * 2**64 else 1
        assert after[key] == f"{expected}/fused"


NAMED = {
    "predict field": lambda channel, arm: predict(channel, arm=arm),
    "predict metadata": lambda channel, arm: predict(channel, (("x-fused-mlp-arm", arm),)),
    "infer parameter": lambda channel, arm: infer(channel, arm=arm),
    "infer metadata": lambda channel, arm: infer(channel, (("x-fused-mlp-arm", arm),)),
}


@both_fronts
@pytest.mark.parametrize("how", NAMED)
def test_a_request_names_an_arm(channel: grpc.Channel, admin: AdminClient, how: str) -> None:
    ask = NAMED[how]
    admin.set_policy("m", labels={"stable": 1}, arms={"3": 1.0}, version=2)
    assert ask(channel, "stable") == "1/fused"
    assert ask(channel, "previous/fused") == "2/fused"
    assert ask(channel, "2") == "2/fused"
    with pytest.raises(grpc.RpcError) as refused:
        ask(channel, "2/unfused")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    admin.set_policy("m", allow_override=True)
    assert ask(channel, "2/unfused") == "2/unfused"
    assert ask(channel, "unfused") == "3/unfused"
    with pytest.raises(grpc.RpcError) as refused:
        ask(channel, "canary")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused.value.details() == "model 'm' has no version 'canary'; the default is 2"
    with pytest.raises(grpc.RpcError) as refused:
        ask(channel, "3/fast")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    expected = (
        "expected a version or a label, a variant, or both, as in 3/fused, stable or unfused, got '3/fast'"
    )
    assert refused.value.details().endswith(expected)


def test_the_message_goes_before_its_metadata_part_by_part(channel: grpc.Channel, admin: AdminClient) -> None:
    admin.set_policy("m", allow_override=True)
    assert predict(channel, (("x-fused-mlp-arm", "1/unfused"),), version=2) == "2/unfused"
    assert infer(channel, (("x-fused-mlp-arm", "1/unfused"),), variant="fused") == "1/fused"
    assert predict(channel, (("x-fused-mlp-arm", "1"), ("x-fused-mlp-variant", "unfused"))) == "1/unfused"
    with pytest.raises(grpc.RpcError, match="in place of version and variant, got '2' beside them"):
        predict(channel, arm="2", version=1)
    with pytest.raises(grpc.RpcError, match="in place of version and variant, got '2' beside them"):
        infer(channel, arm="2", model_version="1")


def test_the_clients_name_an_arm(puppet: PuppetService) -> None:
    with Client(puppet.target) as client:
        assert client.predict("m", X, arm="previous").version == 2
        assert [item.unwrap().version for item in client.stream("m", [X, X], arm="1")] == [1, 1]


def test_an_arm_that_a_model_does_not_have_is_refused(
    puppet: PuppetService, channel: grpc.Channel, admin: AdminClient
) -> None:
    for model, changes, text in (
        ("m", {"arms": {"7/fused": 0.1}}, "arms: 7/fused of m cannot answer: there is no such version"),
        ("m", {"version": "stable"}, "version: m has no version 'stable'"),
        ("m", {"arms": {"2": 0.6, "1": 0.6}}, "arms whose shares sum up to 1 at most"),
        ("m", {"arms": {"2": 0.5}, "split": 0.1}, "split or arms, not both"),
        ("m", {"arms": {"2/fast": 0.5}}, "expected a version or a label"),
        ("m", {"labels": {"latest": 1}}, "a label of a to z"),
        ("wide", {"arms": {"1": 0.1}}, "it takes rows of 5, version 2 of 4"),
    ):
        with pytest.raises(PredictError) as refused:
            admin.set_policy(model, **changes)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in str(refused.value)
    assert predict(channel) == "3/fused"
    # Nor does one that is not there any more stand in the way of other changes.
    catalog = puppet.service.catalog
    admin.set_policy("m", version=3, arms={"2": 0.5})
    catalog.policies.file.path.write_text('{"m": {"version": "3", "arms": {"9": 0.5}}}')
    catalog.policies.read()
    assert admin.set_policy("m", weight=2)[0].arms == {"9": 0.5}
    assert [predict(channel) for _ in range(4)] == ["3/fused"] * 4


def test_shares_of_arms_are_told(puppet: PuppetService, admin: AdminClient) -> None:
    admin.set_policy("m", version=1, arms={"2/unfused": 0.5}, labels={"stable": 1})
    (told,) = admin.policies("m")
    assert (told.version, told.arms, told.labels) == ("1", {"2/unfused": 0.5}, {"stable": 1})
    assert puppet.metric("fused_mlp_policy_arm_ratio", model="m", arm="2/unfused") == 0.5


def test_an_arm_of_another_version_shadows_the_default(
    puppet: PuppetService, channel: grpc.Channel, admin: AdminClient
) -> None:
    admin.set_policy("m", version=1, shadow=1, shadow_arm="3")
    labels = {"model": "m", "arm": "1/fused", "shadow_arm": "3/fused"}
    name = "fused_mlp_version_shadow_difference_ratio"
    answers = 0

    def compared() -> bool:
        nonlocal answers
        answers += 1
        assert predict(channel) == "1/fused"
        return puppet.metric(f"{name}_count", **labels) >= 3

    puppet.wait_for(compared)
    assert puppet.metric(f"{name}_bucket", **labels, le="0.001") == 0  # other weights
    assert puppet.metric(f"{name}_sum", **labels) > 0.001
    assert puppet.metric("fused_mlp_shadow_rows_total", model="m") == 0  # no check of variants
    admin.set_policy("m", shadow_arm="", shadow=0)
    with pytest.raises(PredictError, match="whose variants a shadow without an arm compares"):
        admin.set_policy("m", shadow_arm="1/unfused")
    with pytest.raises(PredictError, match="shadow_arm: 9 of m: there is no such version"):
        admin.set_policy("m", shadow_arm="9")


def test_versions_whose_rows_have_other_widths_are_not_compared(
    puppet: PuppetService, admin: AdminClient
) -> None:
    """Of `wide` version 1 takes rows of 5, version 2 of 4; the policy is for all models."""
    admin.set_policy(version=2, shadow=1, shadow_arm="1")
    try:
        assert [name for name, _ in puppet.service.catalog.version_shadows() if name == "wide"] == []
        of_m = dict(puppet.service.catalog.version_shadows())["m"]
        assert (of_m.arm, of_m.shadow_arm, of_m.lanes is None) == ("2/fused", "1/fused", False)
    finally:
        admin.set_policy(shadow_arm="", shadow=0)
    assert dict(puppet.service.catalog.version_shadows())["m"].lanes is None  # so that versions can be freed


def test_arms_are_loaded_on_demand(front: str, tmp_path: Path) -> None:
    make_repository(tmp_path)
    policy = '{"m": {"version": "1", "arms": {"2": 0.5}, "labels": {"stable": 3}}}'
    settings = {"front": front, "backend": "auto", "model_repository": tmp_path, "load": "lazy"}
    with PuppetService(policy=policy, **settings) as puppet, Client(puppet.target) as client:
        assert {client.predict("m", X).version for _ in range(6)} == {1, 2}
        assert Counter(client.predict("m", X).version for _ in range(10)) == {1: 5, 2: 5}
        states = {v.version: v.state for v in puppet.service.catalog.get("m").versions}
        assert states == {1: "READY", 2: "READY", 3: "UNAVAILABLE"}
        assert client.predict("m", X, arm="stable").version == 3


def test_policies_outlive_the_server(front: str, tmp_path: Path) -> None:
    make_repository(tmp_path)
    settings = {"front": front, "backend": "auto", "model_repository": tmp_path}
    with PuppetService(admin_port=free_port(), **settings) as puppet:
        with AdminClient(puppet.admin_target) as admin:
            admin.set_policy("m", version="stable", labels={"stable": 2}, arms={"3": 0.5})
            admin.set_policy(weight=2)
            changes = admin.history()
        assert [(each.model, each.by) for each in changes] == [
            ("m", "anonymous"),
            ("", "anonymous"),
        ]
        assert "version 'stable'" in changes[0].what
    kept = json.loads((tmp_path / "policy.json").read_text())["policies"]
    assert kept == {
        "m": {"version": "stable", "labels": {"stable": 2}, "arms": {"3": 0.5}},
        "*": {"weight": 2.0},
    }
    with PuppetService(**settings) as puppet, Client(puppet.target) as client:
        policy = puppet.service.catalog.get("m").policy
        assert (policy.version, policy.arms, policy.weight) == ("stable", {"3": 0.5}, 2)
        assert Counter(client.predict("m", X).version for _ in range(10)) == {2: 5, 3: 5}
        # Changed by hand: read again, unless it cannot be.
        catalog = puppet.service.catalog
        (reload,) = [each for each in puppet.service.credentials.reloads if each.name == "policy"]
        (tmp_path / "policy.json").write_text('{"m": {"version": "1"}}')
        reload.poll()
        assert client.predict("m", X).version == 1
        assert catalog.policies.history[-1].by == "policy.json"
        for bad in ('{"m": {"versio', '{"m": {"split": 2}}', '{"m": {"arms": {"2": 0.1}, "split": 0.1}}'):
            (tmp_path / "policy.json").write_text(bad)
            reload.poll()
            assert client.predict("m", X).version == 1
        assert reload.results == {"ok": 1, "failed": 3}
