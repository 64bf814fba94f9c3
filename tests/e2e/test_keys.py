# SPDX-License-Identifier: Apache-2.0
"""Callers with keys: what each may do, what it is told of models, and which names are believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fused_mlp.protos import health_pb2
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.client.admin import AdminClient
from tests.e2e.test_tls_reload import admin_target, reloads
from tests.support.fronts import both_fronts
from tests.support.keys import Keys
from tests.support.rest import exchange, rest_port
from tests.support.server import Server, demo_copy, free_port, run_to_exit
from tests.support.waiting import wait_until

X = np.zeros((2, 64), np.float32)
KNOWN = {
    "all": {},
    "looker": {"actions": ["describe"], "models": ["dig*"]},
    "stranger": {"models": ["other-?"]},
    "operator": {"actions": ["admin"]},
    "part": {"actions": ["admin", "predict"], "models": ["digits"]},
    "scraper": {"actions": ["metrics"]},
    "by-proxy": {"subjects": ["team-a/*"]},
    "slow": {"requests_per_s": 1},
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.json", **KNOWN)


@pytest.fixture(scope="module")
def server(front: str, keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"admin_port": free_port(), "allow_load": 1}
    repository = demo_copy(tmp_path_factory.mktemp("repository"))
    with Server(front=front, keys=keys.path, model_repository=repository, **settings) as running:
        yield running


def code_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except PredictError as error:
        return error.code.name
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def predict(target: str, metadata: Mapping[str, str], model: str = "digits") -> str:
    """The code that Predict, ModelInfer and both streams end with."""

    def last_of_stream() -> None:
        for item in client.stream(model, [X]):
            item.unwrap()

    with Client(target, metadata=metadata) as client:
        codes = {code_of(lambda: client.predict(model, X)), code_of(last_of_stream)}
    with grpc.insecure_channel(target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, 64])
        tensor.contents.fp32_contents.extend([0.0] * 64)
        request = oip.ModelInferRequest(model_name=model, inputs=[tensor])
        sent = tuple(metadata.items())
        codes.add(code_of(lambda: stub.ModelInfer(request, metadata=sent, timeout=20)))
    (code,) = codes
    return code


def describe(target: str, metadata: Mapping[str, str], model: str = "digits") -> str:
    """The code that everything which is said of one model ends with."""
    with Client(target, metadata=metadata) as client, grpc.insecure_channel(target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        sent = {"metadata": tuple(metadata.items()), "timeout": 20}
        calls = [
            lambda: client.model(model),
            lambda: client.health(model),
            lambda: stub.ModelMetadata(oip.ModelMetadataRequest(name=model), **sent),
            lambda: stub.ModelConfig(oip.ModelConfigRequest(name=model), **sent),
            lambda: stub.ModelReady(oip.ModelReadyRequest(name=model), **sent),
            lambda: stub.ModelStatistics(oip.ModelStatisticsRequest(name=model), **sent),
        ]
        (code,) = {code_of(call) for call in calls}
    return code


@both_fronts
@pytest.mark.parametrize(
    ("name", "predicts", "describes"),
    [
        ("all", "OK", "OK"),
        ("looker", "PERMISSION_DENIED", "OK"),
        ("stranger", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        ("operator", "PERMISSION_DENIED", "OK"),
        ("part", "OK", "OK"),
        ("scraper", "PERMISSION_DENIED", "PERMISSION_DENIED"),
    ],
)
def test_a_key_opens_what_its_caller_may_do(
    server: Server, keys: Keys, name: str, predicts: str, describes: str
) -> None:
    for metadata in (keys.bearer(name), {"x-api-key": keys[name]}):
        assert predict(server.target, metadata) == predicts
        assert describe(server.target, metadata) == describes


@both_fronts
@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer fmk_guess"},
        {"authorization": "Basic Zm9vOmJhcg=="},
        {"x-api-key": ""},
        {"x-api-key": "k" * 5000},
        {"x-fused-mlp-caller": "team-a/ann"},  # not from a proxy
    ],
    ids=str,
)
def test_without_a_key_only_probes_are_answered(server: Server, metadata: dict[str, str]) -> None:
    assert predict(server.target, metadata) == "UNAUTHENTICATED"
    with Client(server.target, metadata=metadata) as client:
        assert code_of(client.models) == "UNAUTHENTICATED"
        assert code_of(lambda: client.health("digits")) == "UNAUTHENTICATED"
        assert client.health() == "SERVING"
        assert client.health("fused_mlp.v1.Inference") == "SERVING"


@both_fronts
def test_a_model_that_a_caller_may_not_see_looks_like_one_that_is_not_there(
    server: Server, keys: Keys
) -> None:
    with Client(server.target, metadata=keys.bearer("stranger")) as client:
        assert client.models() == []
        for call in (lambda model: client.predict(model, X), client.model, client.health):
            texts = []
            for model in ("digits", "absent"):
                with pytest.raises(PredictError, match="PERMISSION_DENIED") as refused:
                    call(model)
                texts.append(refused.value.message.replace(model, "MODEL"))
            assert texts[0] == texts[1]
        assert code_of(lambda: client.predict("other-1", X)) == "NOT_FOUND"
    with grpc.insecure_channel(server.target) as channel:
        health = Stub(channel, health_pb2, "Health")
        sent = tuple(keys.bearer("stranger").items())
        listed = health.List(health_pb2.HealthListRequest(), metadata=sent, timeout=20)
        assert "digits" not in listed.statuses
        assert "" in listed.statuses


@pytest.mark.parametrize(
    ("name", "all_models", "one_model"),
    [
        ("operator", "OK", "OK"),
        ("part", "PERMISSION_DENIED", "OK"),
        ("all", "PERMISSION_DENIED", "PERMISSION_DENIED"),
    ],
)
def test_administration_by_model(
    server: Server, keys: Keys, name: str, all_models: str, one_model: str
) -> None:
    with AdminClient(admin_target(server), metadata=keys.bearer(name)) as admin:
        assert code_of(admin.policies) == all_models
        assert code_of(lambda: admin.set_policy(split=0.0)) == all_models
        assert code_of(lambda: admin.policies("digits")) == one_model
        assert code_of(lambda: admin.load("digits")) == one_model
    with grpc.insecure_channel(server.target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        request = oip.RepositoryModelLoadRequest(model_name="digits")
        sent = tuple(keys.bearer(name).items())
        assert code_of(lambda: stub.RepositoryModelLoad(request, metadata=sent, timeout=20)) == one_model
    if one_model == "OK":
        assert f"who={name} " in server.log()


@both_fronts
def test_keys_are_nowhere_to_be_seen_and_callers_are_counted(server: Server, keys: Keys) -> None:
    before = server.metric("fused_mlp_caller_rows_total", caller="all")
    assert predict(server.target, keys.bearer("all")) == "OK"
    assert predict(server.target, keys.bearer("stranger")) == "PERMISSION_DENIED"
    pages = server.get("/metrics")[1]
    assert server.metric("fused_mlp_caller_rows_total", caller="all") == before + 5
    assert server.metric("fused_mlp_caller_refused_total", caller="stranger", reason="not_allowed") >= 3
    for secret in (keys["all"], keys["stranger"]):
        assert secret not in pages + server.log() + server.get("/status.json")[1]
    assert 'caller="by-proxy"' not in pages  # no traffic, no series


@both_fronts
def test_quotas_are_refused_with_the_time_to_retry(server: Server, keys: Keys) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stub = Stub(channel, oip, "GRPCInferenceService")
        request = oip.ModelInferRequest(model_name="digits")
        tensor = request.inputs.add(name="input", datatype="FP32", shape=[1, 64])
        tensor.contents.fp32_contents.extend([0.0] * 64)
        sent = tuple(keys.bearer("slow").items())
        stub.ModelInfer(request, metadata=sent, timeout=20)
        with pytest.raises(grpc.RpcError) as refused:
            for _ in range(3):
                stub.ModelInfer(request, metadata=sent, timeout=20)
    assert refused.value.code().name == "RESOURCE_EXHAUSTED"
    assert "quota of caller 'slow' is used up: requests_per_s; retry in" in refused.value.details()
    assert 0 < int(dict(refused.value.trailing_metadata())["retry-after-ms"]) <= 1001
    assert server.metric("fused_mlp_caller_refused_total", caller="slow", reason="requests_per_s") >= 1
    assert server.metric("fused_mlp_requests_total", code="RESOURCE_EXHAUSTED", variant="fused") == 0


@both_fronts
def test_a_look_at_health_is_counted_like_any_other(server: Server, keys: Keys) -> None:
    def refused(caller: str, reason: str) -> float:
        return server.metric("fused_mlp_caller_refused_total", caller=caller, reason=reason)

    denied = refused("stranger", "not_allowed")
    with grpc.insecure_channel(server.target) as channel:
        check = Stub(channel, health_pb2, "Health").Check
        request = health_pb2.HealthCheckRequest(service="digits")

        def ends_with(**sent: str) -> tuple[str, dict[str, str]]:
            try:
                check(
                    request,
                    metadata=[(name.replace("_", "-"), value) for name, value in sent.items()],
                    timeout=20,
                )
            except grpc.RpcError as error:
                return error.code().name, dict(error.trailing_metadata())
            return "OK", {}

        assert ends_with(x_api_key=keys["stranger"])[0] == "PERMISSION_DENIED"
        assert refused("stranger", "not_allowed") == denied + 1
        answers = dict(ends_with(x_api_key=keys["slow"]) for _ in range(4))
        assert 0 < int(answers["RESOURCE_EXHAUSTED"]["retry-after-ms"]) <= 1001
        answers = dict(ends_with(x_api_key="guess") for _ in range(80))
        assert answers["UNAUTHENTICATED"].get("retry-after-ms") is None
        assert 0 < int(answers["RESOURCE_EXHAUSTED"]["retry-after-ms"]) <= 1001


def test_commands_take_the_key_from_a_file_or_the_environment(
    server: Server, keys: Keys, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{keys['all']}\n")
    for command in (["health", "digits"], ["models", "digits"], ["predict", "digits", "--example"]):
        for options, variables, code in (
            ([], {}, 1),
            (["--token-file", str(tmp_path / "key")], {}, 0),
            ([], {"FUSED_MLP_API_KEY": keys["all"]}, 0),
        ):
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "fused_mlp.service.cli",
                    *command,
                    "--target",
                    server.target,
                    *options,
                ],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == code, (command, options, done.stderr)
            assert ("UNAUTHENTICATED" in done.stderr) == (code == 1)


@both_fronts
def test_names_from_a_proxy_count_only_if_the_file_names_the_proxy(front: str, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.json", **KNOWN)
    keys.proxies = ["10.0.0.0/8", "CN:envoy"]
    keys.write()
    ann = {"x-fused-mlp-caller": "team-a/ann"}
    with Server(front=front, keys=keys.path) as server:
        assert predict(server.target, ann) == "UNAUTHENTICATED"
        keys.proxies = ["127.0.0.0/8"]
        keys.write()
        wait_until(lambda: reloads(server, "ok", "keys") == 1)
        assert predict(server.target, ann) == "OK"
        assert predict(server.target, {"x-fused-mlp-caller": "team-b/bob"}) == "PERMISSION_DENIED"
        assert predict(server.target, {**keys.bearer("stranger"), **ann}) == "OK"
        assert predict(server.target, {}) == "UNAUTHENTICATED"
        assert server.metric("fused_mlp_caller_requests_total", caller="by-proxy") > 0


@both_fronts
def test_a_name_that_comes_twice_is_refused(front: str, tmp_path: Path) -> None:
    """A proxy that adds the header to one of the caller's own must not let the caller choose."""
    keys = Keys(tmp_path / "keys.json", **KNOWN)
    keys.proxies = ["127.0.0.0/8"]
    keys.write()
    name = "x-fused-mlp-caller"
    known, other = (name, "team-a/ann"), (name, "team-b/bob")
    refused = [[known, other], [other, known], [(name, "team-a/ann, team-b/bob")], [(name, "team-a/ann,")]]
    rest = {"rest_port": 0} if front == "native" else {}
    with (
        Server(front=front, keys=keys.path, **rest) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        look = Stub(channel, oip, "GRPCInferenceService").ModelMetadata
        request = oip.ModelMetadataRequest(name="digits")
        assert code_of(lambda: look(request, metadata=[known], timeout=20)) == "OK"
        for names in refused:
            assert code_of(partial(look, request, metadata=names, timeout=20)) == "INVALID_ARGUMENT"
        for joined in refused[2:]:
            assert predict(server.target, dict(joined)) == "INVALID_ARGUMENT"
        head = "GET /v2/models/digits HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        for names, status in (([known], b"200"), *((names, b"400") for names in refused)):
            data = head + "".join(f"{name}: {value}\r\n" for name, value in names) + "\r\n"
            assert not rest or exchange(rest_port(server), data.encode()).split()[1] == status


def test_the_metrics_port_asks_for_keys_where_it_is_told_to(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.json", **KNOWN)
    with Server(keys=keys.path, callers=json.dumps({"metrics": str(keys.path)})) as server:
        assert server.get("/metrics")[0] == 401
        assert server.get("/readyz")[0] == 200
        for header, status in (
            (keys.bearer("scraper"), 200),
            ({"x-api-key": keys["scraper"]}, 200),
            (keys.bearer("operator"), 401),
        ):
            assert server.get("/metrics", header)[0] == status


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "keys.json: input should be an object"),
        ('{"callers": [{"name": "a"}]}', "callers.0: expected sha256, certificates or subjects"),
        ('{"callers": [{"name": "a b", "sha256": "hunter2"}]}', "callers.0.name"),
        ('{"proxies": ["10.0.0.0/99"]}', "proxies: expected an address, a network"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_contents(
    text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text(text)
    refused = run_to_exit(keys=tmp_path / "keys.json")
    assert refused.returncode == 1
    assert problem in refused.stderr
    assert "hunter2" not in refused.stderr
