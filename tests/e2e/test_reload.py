# SPDX-License-Identifier: Apache-2.0
"""A server follows its repository while it runs, and does what an operator says about versions."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fused_mlp import models
from fused_mlp.models import LayerSpec, Mlp, MlpSpec
from fused_mlp.protos import health_pb2
from fused_mlp.service.cli.program import app
from fused_mlp.service.client import Client, PredictError
from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.server import Server, demo_copy, free_port
from tests.support.waiting import wait_until

X = np.zeros((1, 64), np.float32)
Followed = tuple[Path, Server, Client, str]  # the last: how the server follows


def add_version(root: Path, version: int, model: str = "digits") -> Path:
    target = root / model / str(version)
    models.save(models.load(root / "digits" / "1"), target)
    return target


def break_weights(version: Path) -> None:
    weights = version / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\xc0\x7f")


def states(client: Client, model: str = "digits") -> dict[int, str]:
    return {v.version: v.state for v in client.model(model).versions}


def check_trailers(server: Server, service: str) -> list[tuple[str, str]]:
    with grpc.insecure_channel(server.target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        _, call = check.with_call(health_pb2.HealthCheckRequest(service=service), timeout=10)
        return [(key, value) for key, value in call.trailing_metadata() if key.startswith("fused-mlp")]


@pytest.fixture(
    params=[("native", "signal"), ("python", "poll:0.1"), ("native", "watch")], ids=lambda p: p[1]
)
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Followed]:
    root, (front, mode) = demo_copy(tmp_path), request.param
    if front == "native" and (problem := native_front_problem()):
        pytest.skip(problem)
    with (
        Server(front=front, model_repository=root, reload=mode, reload_settle_s=0.3) as server,
        Client(server.target) as client,
    ):
        yield root, server, client, mode


def asked(server: Server, condition: Callable[[], object], mode: str = "signal") -> None:
    """In the other modes the server looks by itself."""
    if mode == "signal":
        server.signal(signal.SIGHUP)
    wait_until(condition)


def test_versions_come_break_and_go(followed: Followed) -> None:
    root, server, client, mode = followed
    client.predict("digits", X)
    add_version(root, 2)
    asked(server, lambda: states(client) == {1: "READY", 2: "READY"}, mode)
    assert client.predict("digits", X).version == 2
    # What has not changed was not loaded again: it has its counters.
    assert server.metric("fused_mlp_requests_total", version="1", code="OK") == 1

    break_weights(add_version(root, 3))
    asked(server, lambda: states(client).get(3) == "UNAVAILABLE", mode)
    assert client.predict("digits", X).version == 2
    with pytest.raises(PredictError) as failure:
        client.predict("digits", X, version=3)
    assert failure.value.code is grpc.StatusCode.UNAVAILABLE
    assert "SHA-256" in client.model("digits").version(3).reason
    assert server.metric("fused_mlp_load_failures_total", model="digits", version="3") == 1
    assert "digits/3 is not served: " in server.log()
    for service in ("", "digits"):
        assert check_trailers(server, service) == [("fused-mlp-unavailable", "digits/3")]

    shutil.rmtree(root / "digits" / "3")
    shutil.rmtree(root / "digits" / "2")
    asked(server, lambda: states(client) == {1: "READY"}, mode)
    assert client.predict("digits", X).version == 1
    wait_until(lambda: check_trailers(server, "digits") == [])

    add_version(root, 1, "other")
    asked(server, lambda: "other" in [model.name for model in client.models()], mode)
    wait_until(lambda: states(client, "other") == {1: "READY"})
    wait_until(lambda: client.health("other") == "SERVING")
    shutil.rmtree(root / "other")
    asked(server, lambda: "other" not in [model.name for model in client.models()], mode)
    assert server.metric("fused_mlp_requests_total", version="1", code="OK") == 2

    # A disk that is away has not changed.
    away = root.with_name(root.name + "-away")
    (root / "digits").rename(away)
    asked(server, lambda: "keeping the current versions" in server.log(), mode)
    assert client.predict("digits", X).version == 1
    away.rename(root / "digits")
    add_version(root, 2)
    asked(server, lambda: states(client) == {1: "READY", 2: "READY"}, mode)


def test_a_version_whose_files_are_replaced_serves_the_new_ones_or_the_old(tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    with (
        Server(model_repository=root, reload="signal", reload_settle_s=0) as server,
        Client(server.target) as client,
    ):
        before = client.predict("digits", X).output
        weights = root / "digits/1/model.safetensors"
        good = weights.read_bytes()
        weights.write_bytes(good[:-4] + b"\0\0\xc0\x7f")  # NaN
        server.signal(signal.SIGHUP)
        wait_until(lambda: "keeping the current files" in server.log())
        np.testing.assert_array_equal(client.predict("digits", X).output, before)
        assert "its new files cannot be used" in client.model("digits").version(1).reason
        weights.write_bytes(good[:-4] + np.float32(40).tobytes())
        server.signal(signal.SIGHUP)
        wait_until(lambda: not client.model("digits").version(1).reason)
        assert not np.array_equal(client.predict("digits", X).output, before)


def test_a_server_killed_while_it_loads_serves_what_there_is_the_next_time(tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    spec = MlpSpec.of_layers(
        64, [LayerSpec(out_features=4096, activation="relu"), LayerSpec(out_features=4096)]
    )
    tensors = {name: np.full(shape, 0.01, np.float32) for name, shape in spec.shapes()}
    large = Mlp(spec, tensors, example=[0.0] * 64)
    with Server(model_repository=root, reload="signal") as server, Client(server.target) as client:
        models.save(large, root / "digits" / "2")
        asked(server, lambda: states(client).get(2) == "LOADING")
        server.process.kill()
        server.wait()
    half = root / "digits" / "3"
    shutil.copytree(root / "digits" / "2", half)
    with (half / "model.safetensors").open("r+b") as weights:
        weights.truncate(1 << 20)
    with Server(model_repository=root) as server, Client(server.target) as client:
        assert states(client) == {1: "READY", 2: "READY", 3: "UNAVAILABLE"}
        assert client.predict("digits", X).version == 2


def test_versions_on_demand_replace_one_in_use_only_once_they_are_loaded(tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    add_version(root, 1, "idle")
    with (
        Server(model_repository=root, reload="signal", load="lazy", reload_settle_s=0) as server,
        Client(server.target) as client,
    ):
        client.predict("digits", X)
        break_weights(add_version(root, 2))
        asked(server, lambda: states(client) == {1: "READY", 2: "UNAVAILABLE"})
        assert client.predict("digits", X).version == 1
        add_version(root, 3)
        add_version(root, 2, "idle")
        asked(server, lambda: states(client).get(3) == "READY")
        wait_until(lambda: states(client, "idle") == {1: "ON_DEMAND", 2: "ON_DEMAND"})
        assert client.predict("digits", X).version == 3
        assert client.predict("idle", X).version == 2


def run(admin: int, *arguments: str) -> Result:
    """A command, in this process."""
    target = ["--target", f"127.0.0.1:{admin}"]
    return CliRunner().invoke(app, [*arguments, *target], prog_name="fused-mlp", env={"COLUMNS": "80"})


def default_of(done: Result) -> int:
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["default_version"]


def test_an_operator_loads_pins_rolls_back_and_unloads(front: str, tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    add_version(root, 2)
    admin = free_port()
    with (
        Server(front=front, model_repository=root, admin_port=admin, reload="signal") as server,
        Client(server.target) as client,
    ):
        assert client.predict("digits", X).version == 2
        assert default_of(run(admin, "rollback", "digits", "--json")) == 1
        assert client.predict("digits", X).version == 1
        add_version(root, 3)
        assert default_of(run(admin, "load", "digits", "--json")) == 1  # pinned
        assert client.predict("digits", X).version == 1
        assert default_of(run(admin, "pin", "digits", "latest", "--json")) == 3
        assert default_of(run(admin, "pin", "digits", "2", "--json")) == 2
        assert client.predict("digits", X).version == 2
        refused = run(admin, "pin", "digits", "7")
        assert refused.exit_code == 1
        assert "model 'digits' has no version 7" in refused.stderr
        assert client.predict("digits", X).version == 2
        (root / "digits" / "4").mkdir()
        failed = run(admin, "load", "digits")
        assert failed.exit_code == 1
        assert "digits/4: " in failed.stderr
        (root / "digits" / "4").rmdir()
        assert default_of(run(admin, "rollback", "digits", "--json")) == 1
        nothing = run(admin, "rollback", "digits")
        assert "no version below 1 to go back to" in nothing.stderr
        assert run(admin, "unload", "digits").exit_code == 0
        with pytest.raises(PredictError):
            client.predict("digits", X)
        add_version(root, 5)
        add_version(root, 1, "other")
        server.signal(signal.SIGHUP)
        wait_until(lambda: [model.name for model in client.models()] == ["other"])
        assert default_of(run(admin, "load", "digits", "--json")) == 1  # its policy has outlived it
        assert states(client).keys() == {1, 2, 3, 5}


def test_a_policy_says_which_versions_are_served(tmp_path: Path) -> None:
    root = demo_copy(tmp_path)
    for version in (2, 3):
        add_version(root, version)
    admin = free_port()
    policy = json.dumps({"digits": {"versions": "latest:1"}})
    with (
        Server(
            model_repository=root, admin_port=admin, reload="signal", reload_settle_s=0, policy=policy
        ) as server,
        Client(server.target) as client,
    ):
        assert states(client) == {3: "READY"}
        break_weights(add_version(root, 4))
        asked(server, lambda: states(client) == {3: "READY", 4: "UNAVAILABLE"})
        assert default_of(run(admin, "rollback", "digits", "--json")) == 2
        assert states(client) == {2: "READY", 3: "READY", 4: "UNAVAILABLE"}
        assert default_of(run(admin, "pin", "digits", "latest", "--json")) == 3
        wait_until(
            lambda: states(client) == {3: "READY", 4: "UNAVAILABLE"}
        )  # not waited for: a pin is urgent
        add_version(root, 5)
        asked(server, lambda: states(client) == {5: "READY"})
        done = run(admin, "policy", "set", "digits", "--versions", "1,5")
        assert done.exit_code == 0, done.stderr
        assert "versions 1,5" in done.stdout
        assert states(client) == {1: "READY", 5: "READY"}
        wrong = run(admin, "policy", "set", "digits", "--versions", "newest")
        assert "versions: expected all, latest:2, or numbers such as 3,5" in wrong.stderr


def test_models_watch_tells_what_changes(tmp_path: Path) -> None:
    root, port = demo_copy(tmp_path), free_port()
    command = [sys.executable, "-m", "fused_mlp.service.cli", "models", "--watch", "--target"]
    with (
        Server(model_repository=root, reload="signal", grpc_port=port) as server,
        Client(server.target) as client,
        subprocess.Popen([*command, server.target], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        told = (line.rstrip() for line in process.stdout)

        def tells(ending: str) -> bool:
            return any(line.endswith(ending) for line in told)

        try:
            assert tells("digits/1  READY  default")
            add_version(root, 2)
            asked(server, lambda: states(client) == {1: "READY", 2: "READY"})
            assert tells("digits/2  READY  default")
            server.stop()
            add_version(root, 3)
            with Server(model_repository=root, grpc_port=port):
                assert tells("digits/3  READY  default")
        finally:
            process.kill()
