# SPDX-License-Identifier: Apache-2.0
"""Repositories in an object store, in several places, and as one model in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fused_mlp import models
from fused_mlp.service.client import Client
from tests.e2e.test_reload import X, add_version, states
from tests.support.fleet import tiny_mlp
from tests.support.server import Server, demo_copy, run_to_exit
from tests.support.waiting import wait_until

BUCKET = "models"


class S3:
    """A real S3 API on this machine, that can be stopped and started."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"

    def client(self):
        import boto3

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.endpoint, **keys)

    def upload(self, folder: Path, prefix: str) -> None:
        client = self.client()
        for path in folder.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}")

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    running = S3()
    running.client().create_bucket(Bucket=BUCKET)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": running.endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    yield running
    running.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_repository_in_s3_is_followed_and_served_without_it(s3: S3, tmp_path: Path) -> None:
    local = demo_copy(tmp_path / "local")
    s3.upload(local, "prod")
    settings = {
        "model_repository": f"s3://{BUCKET}/prod",
        "repository_cache": tmp_path / "cache",
        "reload": "poll:0.2",
    }
    with Server(**settings) as server, Client(server.target) as client:
        assert client.predict("digits", X).version == 1
        add_version(local, 2)
        s3.upload(local, "prod")
        wait_until(lambda: states(client) == {1: "READY", 2: "READY"})
        assert server.log().count("fetched digits/1") == 1
        s3.stop()
        wait_until(lambda: "what was fetched before stays" in server.log())
        assert client.predict("digits", X).version == 2
        assert server.metric("fused_mlp_fetch_failures_total", repository=f"s3://{BUCKET}/prod") >= 1
    with Server(**settings) as server, Client(server.target) as client:  # while the store is down
        assert client.predict("digits", X).version == 2
    shutil.rmtree(tmp_path / "cache")
    refused = run_to_exit(**settings)
    assert refused.returncode == 1
    assert "no version could be fetched, and none was before" in refused.stderr


def test_several_repositories_are_served_as_one(tmp_path: Path) -> None:
    first, second = demo_copy(tmp_path / "first"), tmp_path / "second"
    models.save(tiny_mlp(), second / "tiny" / "1")
    models.save(tiny_mlp(), second / "digits" / "7")
    with Server(model_repository=f"{first}, {second}") as server, Client(server.target) as client:
        assert {m.name: m.default_version for m in client.models()} == {"digits": 1, "tiny": 1}
        assert "digits is served from another repository" in server.log()


def test_one_model_in_a_folder_as_kserve_mounts_it(tmp_path: Path) -> None:
    root = demo_copy(tmp_path) / "digits" / "1"
    with Server(model_repository=root, model_name="numbers") as server, Client(server.target) as client:
        assert client.predict("numbers", X).version == 1
    refused = run_to_exit(model_repository=root, model_name="a/b")
    assert "model name 'a/b'" in refused.stderr


def test_a_checkpoint_is_served_as_it_is(tmp_path: Path) -> None:
    """As Hugging Face has them, with a few words beside it."""
    random = np.random.default_rng(0)
    w1, w2 = (random.normal(size=shape).astype(np.float32) for shape in ((8, 4), (3, 8)))
    root = tmp_path / "net"
    root.mkdir()
    save_file({"model.fc1.weight": w1, "model.fc2.weight": w2}, root / "model.safetensors")
    (root / "model.json").write_text(
        json.dumps(
            {"format": "safetensors/1", "activation": "relu", "prefix": "model", "example": [0, 0, 0, 0]}
        )
    )
    x = random.normal(size=(2, 4)).astype(np.float32)
    for load in ("eager", "lazy"):
        with Server(model_repository=root, load=load) as server, Client(server.target) as client:
            np.testing.assert_allclose(
                client.predict("net", x).output, np.maximum(x @ w1.T, 0) @ w2.T, rtol=1e-5, atol=1e-5
            )
    (root / "model.json").write_text(json.dumps({"format": "safetensors/1"}))
    refused = run_to_exit(model_repository=root)
    assert "activation" in refused.stderr
    (root / "model.json").unlink()
    refused = run_to_exit(model_repository=root)
    assert "net/model.json: no such file, but model.safetensors is there" in refused.stderr
