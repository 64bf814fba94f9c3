# SPDX-License-Identifier: Apache-2.0
"""The serving runtime for KServe: its own storage package fetches a model from S3 into the folder that the server then
serves with the runtime's settings, and its own client infers over gRPC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from fused_mlp.service.client import Client
from tests.e2e.test_stores import BUCKET, S3, s3
from tests.support.foreign_clients import run_kserve
from tests.support.server import Server, demo_copy

__all__ = ["s3"]  # the fixture
KSERVE = Path(__file__).resolve().parents[2] / "deploy" / "kserve"
RUNTIME = yaml.safe_load((KSERVE / "runtime.yaml").read_text())
SERVICE = yaml.safe_load((KSERVE / "inference-service.yaml").read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_is_fetched_served_and_called_by_kserves_own_packages(s3: S3, tmp_path: Path) -> None:
    uri = SERVICE["spec"]["predictor"]["model"]["storageUri"]
    prefix = uri.removeprefix(f"s3://{BUCKET}/")
    s3.upload(demo_copy(tmp_path / "local") / "digits" / "1", prefix)
    models = tmp_path / "mnt" / "models"
    models.mkdir(parents=True)
    fetched = run_kserve("fetch", uri, str(models))
    assert {"model.json", "model.safetensors"} <= set(fetched["files"])

    (container,) = RUNTIME["spec"]["containers"]
    name = SERVICE["metadata"]["name"]
    settings = {
        entry["name"].removeprefix("FUSED_MLP_").lower(): entry["value"].replace("{{.Name}}", name)
        for entry in container["env"]
        if "value" in entry
    }
    assert settings["model_repository"] == "/mnt/models"
    settings |= {"model_repository": models, "log_format": "text", "drain_delay_s": 0, "allow_load": 1}
    with Server(**settings) as server:
        x = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)
        with Client(server.target) as client:
            expected = client.predict(name, x).output
        outcome = run_kserve("infer", server.target, name)
    assert outcome["ready"] == [True, True, True]
    for output in outcome["outputs"]:  # typed contents and raw bytes
        np.testing.assert_allclose(np.reshape(output, (2, -1)), expected, rtol=1e-6)
    assert outcome["repository"] == [name, True, name, True]


def test_manifests_have_the_fields_of_kserves_models(tmp_path: Path) -> None:
    files = sorted(KSERVE.glob("*.yaml"))
    assert run_kserve("check", *map(str, files))["unknown"] == []
    broken = tmp_path / "runtime.yaml"
    broken.write_text((KSERVE / "runtime.yaml").read_text().replace("periodSeconds: 1\n", "periodSecs: 1\n"))
    (line,) = run_kserve("check", str(broken))["unknown"]
    assert line == "ClusterServingRuntime.spec.containers.0.startupProbe.periodSecs: unknown"


def test_runtime_is_what_kserve_expects_of_one() -> None:
    (container,) = RUNTIME["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["ports"] == [{"name": "h2c", "containerPort": 8001, "protocol": "TCP"}]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["grpc"] == {"port": 8001}
    assert RUNTIME["spec"]["annotations"] == {
        "prometheus.kserve.io/port": "8002",
        "prometheus.kserve.io/path": "/metrics",
    }
    model = SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in RUNTIME["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
