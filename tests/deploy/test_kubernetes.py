# SPDX-License-Identifier: Apache-2.0
"""The Kustomize overlays and components: each builds, every manifest fits its schema, and what they name exists."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fused_mlp.service.policy.policy import parse_policies
from fused_mlp.service.settings.environment import load_settings
from fused_mlp.service.settings.settings import ENV_PREFIX, Settings
from tests.deploy import custom_resources

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
SCHEMAS = "1.32"  # the oldest that is maintained; the probes by gRPC are there since 1.27
NAME = "app.kubernetes.io/name"

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
Manifest = dict[str, Any]


def build(folder: Path) -> list[Manifest]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@cache
def overlay(name: str) -> list[Manifest]:
    return build(KUBERNETES / "overlays" / name)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The base with all components but the one of two autoscalers, as a user would combine them."""
    folder = tmp_path_factory.mktemp("everything")
    shutil.copytree(KUBERNETES, folder / "kubernetes")
    components = [f"../kubernetes/components/{name}" for name in COMPONENTS if name != "hpa"]
    (folder / "mine").mkdir()
    (folder / "mine/kustomization.yaml").write_text(
        json.dumps({"resources": ["../kubernetes/base"], "components": components})
    )
    return build(folder / "mine")


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def containers(manifests: list[Manifest]) -> list[Manifest]:
    pods = [each["spec"]["template"]["spec"] for each in of_kind(manifests, "Deployment")]
    return [container for pod in pods for container in pod["containers"]]


def environment(container: Manifest) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def check_schemas(manifests: list[Manifest]) -> None:
    foreign = []
    for manifest in manifests:
        if custom_resources.is_known(manifest):
            foreign.append(manifest)
        else:
            kubernetes_validate.validate(manifest, SCHEMAS, strict=True)
    assert custom_resources.problems(foreign) == ""


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_fits_the_schemas(name: str) -> None:
    check_schemas(overlay(name))


def test_all_components_together_fit_the_schemas(everything: list[Manifest]) -> None:
    kinds = {manifest["kind"] for manifest in everything}
    assert {"GRPCRoute", "ScaledObject", "PodMonitor", "PrometheusRule", "PersistentVolumeClaim"} <= kinds
    check_schemas(everything)


BROKEN = {
    "ScaledObject": {"minReplicas": 2},
    "PodMonitor": {"selektor": {}},
    "PrometheusRule": {"groups": [{"name": "g", "rules": [{"alert": "A"}]}]},
}


def test_broken_custom_resources_would_be_found(everything: list[Manifest]) -> None:
    broken = [
        each | {"spec": each["spec"] | BROKEN[each["kind"]]} for each in everything if each["kind"] in BROKEN
    ]
    said = custom_resources.problems(broken)
    assert [word in said for word in ("minReplicas", "selektor", "expr")] == [True] * 3
    (route,) = of_kind(everything, "GRPCRoute")
    # A number, but none that a weight can be.
    rules = [{"backendRefs": [{"name": "a", "port": 8001, "weight": -1}]}]
    assert "weight" in custom_resources.problems([route | {"spec": route["spec"] | {"rules": rules}}])


def test_a_broken_manifest_would_be_found() -> None:
    (deployment,) = of_kind(overlay("cpu"), "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment | {"replicas": 2}, SCHEMAS, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_is_referred_to_is_there(name: str) -> None:
    manifests = overlay(name)
    named = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    for each in of_kind(manifests, "Deployment"):
        for volume in each["spec"]["template"]["spec"]["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in named
    for each in of_kind(manifests, "HorizontalPodAutoscaler"):
        assert ("Deployment", each["spec"]["scaleTargetRef"]["name"]) in named
    for each in of_kind(manifests, "GRPCRoute"):
        assert {
            ("Service", ref["name"]) for rule in each["spec"]["rules"] for ref in rule["backendRefs"]
        } <= named


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_deployments_pods_are_selected_by_one_of_each_kind(name: str) -> None:
    deployments = of_kind(overlay(name), "Deployment")
    pods = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in deployments}

    def selected(each: Manifest) -> list[str]:
        selector = each["spec"].get("selector") or each["spec"]["podSelector"]
        wanted = selector.get("matchLabels", selector).items()
        return [name for name, labels in pods.items() if wanted <= labels.items()]

    for each in deployments:
        assert selected(each) == [each["metadata"]["name"]]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        chosen = [selected(each) for each in of_kind(overlay(name), kind)]
        assert {name for names in chosen for name in names} == pods.keys(), kind
        assert {len(names) for names in chosen} == {1}, kind


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_setting_that_is_set_exists_and_policies_can_be_used(name: str) -> None:
    for container in containers(overlay(name)):
        settings = {
            key.removeprefix(ENV_PREFIX).lower()
            for key in environment(container)
            if key.startswith(ENV_PREFIX)
        }
        assert settings - {"cores"} <= Settings.model_fields.keys()
    for each in of_kind(overlay(name), "ConfigMap"):
        for policy in parse_policies(each["data"]["policy.json"]).values():
            load_settings().policies.default.changed(policy.given())


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_confined_and_know_their_cores(name: str) -> None:
    for each in of_kind(overlay(name), "Deployment"):
        pod = each["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        (cores,) = (entry for entry in container["env"] if entry["name"] == "FUSED_MLP_CORES")
        assert cores["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        set_to = environment(container)
        drain = float(set_to["FUSED_MLP_DRAIN_DELAY_S"]) + float(set_to["FUSED_MLP_DRAIN_TIMEOUT_S"])
        assert pod["terminationGracePeriodSeconds"] > drain


@pytest.mark.parametrize("name", OVERLAYS)
def test_readiness_outlasts_a_late_answer_and_is_lost_within_the_delay_of_the_drain(name: str) -> None:
    for container in containers(overlay(name)):
        probe = container["readinessProbe"]
        assert probe["failureThreshold"] > 1
        leaves_after = probe["failureThreshold"] * probe["periodSeconds"]
        assert leaves_after < float(environment(container)["FUSED_MLP_DRAIN_DELAY_S"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_grpc_and_rest_are_reached_on_the_ports_that_the_server_has(name: str) -> None:
    by_name = {"grpc": "grpc_port", "http": "rest_port", "metrics": "metrics_port"}
    wanted = {port: Settings.model_fields[field].default for port, field in by_name.items()}
    for container in containers(overlay(name)):
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == wanted
    for each in of_kind(overlay(name), "Service"):
        ports = {port["targetPort"]: port["port"] for port in each["spec"]["ports"]}
        assert ports.items() <= wanted.items()
    for each in of_kind(overlay(name), "NetworkPolicy"):
        (anyone, _) = each["spec"]["ingress"]
        assert anyone["ports"] == [{"port": "grpc"}, {"port": "http"}]


def test_gpu_overlay_asks_for_a_gpu_and_keeps_the_rest() -> None:
    (cpu,), (gpu,) = containers(overlay("cpu")), containers(overlay("gpu"))
    for part in ("requests", "limits"):
        assert gpu["resources"][part]["nvidia.com/gpu"] == 1
        assert "nvidia.com/gpu" not in cpu["resources"][part]
    assert gpu["startupProbe"]["grpc"] == cpu["startupProbe"]["grpc"]
    assert gpu["livenessProbe"] == cpu["livenessProbe"]
    assert environment(gpu)["FUSED_MLP_DEVICE"] == "cuda"
    # Triton's cache is mounted, and a successor does not wait for the GPU that the old pod holds.
    cache_folder = environment(gpu)["TRITON_CACHE_DIR"]
    assert any(cache_folder.startswith(mount["mountPath"]) for mount in gpu["volumeMounts"])
    (deployment,) = of_kind(overlay("gpu"), "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_with_tls_probes_ask_the_metrics_port(everything: list[Manifest]) -> None:
    (container,) = containers(everything)
    assert "FUSED_MLP_TLS_CERTIFICATE" in environment(container)
    for probe in ("startupProbe", "readinessProbe"):
        assert "grpc" not in container[probe]
        assert container[probe]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    for each in of_kind(everything, "Service"):
        for port in each["spec"]["ports"]:
            assert port.get("appProtocol") == (None if port["name"] == "metrics" else "https")


def test_an_autoscaler_has_the_number_of_replicas_to_itself(everything: list[Manifest]) -> None:
    for manifests in (overlay("cpu"), everything):
        (deployment,) = of_kind(manifests, "Deployment")
        assert "replicas" not in deployment["spec"]


def test_prometheus_rule_is_made_of_the_rules() -> None:
    rule = yaml.safe_load((KUBERNETES / "components/monitoring/prometheus-rule.yaml").read_text())
    groups = [
        group
        for name in ("rules.yaml", "alerts.yaml")
        for group in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
    ]
    assert rule["spec"]["groups"] == groups, "run: python deploy/prometheus/operator_rules.py"
