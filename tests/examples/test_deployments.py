# SPDX-License-Identifier: Apache-2.0
"""Examples that need a container engine or a cluster: what can be checked without one. The settings are given to a real
server, and the model that the manifests bring answers."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fused_mlp.service.client import Client
from fused_mlp.service.local.child_server import ChildServer
from fused_mlp.service.settings.settings import ENV_PREFIX, Settings
from tests.deploy.test_kubernetes import check_schemas, containers, environment, of_kind
from tests.docs.page import ROOT, read_page
from tests.support.server import Server, demo_copy
from tests.support.server import environment as variables

COMPOSE = "examples/compose_grafana/own-model.yaml"
KUBERNETES = "examples/kubernetes_own_model"


def settings(variables: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix(ENV_PREFIX).lower(): value for name, value in variables.items()}


def test_compose_with_a_model_of_ones_own_changes_services_that_exist(tmp_path: Path) -> None:
    base = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    own = yaml.safe_load((ROOT / COMPOSE).read_text())["services"]
    assert own.keys() == {name for name, service in base.items() if "build" in service}
    for name, service in own.items():
        (volume,) = service["volumes"]
        source, _, mount = volume.removesuffix(":ro").rpartition(":")
        assert source.startswith("${MODELS:?")
        merged = settings(base[name]["environment"] | service["environment"])
        assert merged.keys() <= Settings.model_fields.keys()
        assert merged["model_repository"] == mount
    # As the container sees it: the folder at the mount, a policy file that can be written.
    merged = settings(base["fused"]["environment"] | own["fused"]["environment"])
    merged["model_repository"] = str(demo_copy(tmp_path / "models"))
    merged["policy_file"] = str(tmp_path / "policy.json")
    with Server(**merged) as server, Client(server.target) as client:
        assert client.predict("digits", [0.0] * 64, variant="unfused").output.shape == (10,)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Made by the commands of the README in a copy of what they need."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    copy = tmp_path_factory.mktemp("repository")
    for folder in ("deploy/kubernetes", "examples/torch_to_server", KUBERNETES):
        shutil.copytree(ROOT / folder, copy / folder)
    train, build, apply = (block.code for block in read_page(f"{KUBERNETES}/README.md").blocks)
    assert "kubectl apply" in apply  # not run: there is no cluster
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", f"({train}) >&2\n{build}"],
        cwd=copy,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_kubernetes_overlay_fits_the_schemas_and_keeps_its_namespace(
    manifests: list[dict[str, Any]],
) -> None:
    check_schemas(manifests)
    (namespace,) = of_kind(manifests, "Namespace")
    for each in manifests:
        if each is not namespace:
            assert each["metadata"]["namespace"] == namespace["metadata"]["name"]
    (container,) = containers(manifests)
    assert re.fullmatch(r"registry\.example\.com/fused-mlp:\d+\.\d+\.\d+", container["image"])
    assert set(settings(environment(container))) - {"cores"} <= Settings.model_fields.keys()


def test_server_answers_from_the_model_in_the_config_map(
    manifests: list[dict[str, Any]], tmp_path: Path
) -> None:
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = containers(manifests)
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "spirals-1"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "spirals-1"]
    (files,) = [
        each
        for each in of_kind(manifests, "ConfigMap")
        if each["metadata"]["name"] == volume["configMap"]["name"]
    ]
    repository = environment(container)["FUSED_MLP_MODEL_REPOSITORY"]
    lay_out(files, tmp_path / Path(mount["mountPath"]).relative_to(repository))
    with ChildServer(variables(model_repository=tmp_path)) as server, Client(server.target) as client:
        answer = client.predict("spirals", [0.5, 0.1])
    assert (answer.version, answer.output.shape) == (1, (3,))


def lay_out(config_map: dict[str, Any], folder: Path) -> None:
    """As the kubelet does: links to links, so that all files change at once."""
    (data := folder / "..2026_11_17").mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    contents = {name: text.encode() for name, text in config_map.get("data", {}).items()}
    contents |= {name: base64.b64decode(text) for name, text in config_map.get("binaryData", {}).items()}
    for name, content in contents.items():
        (data / name).write_bytes(content)
        (folder / name).symlink_to(f"..data/{name}")
