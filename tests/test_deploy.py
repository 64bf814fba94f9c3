"""What deploys the service names things that exist: settings, ports, files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fused_mlp.service.settings.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEPLOYMENTS = [
    ROOT / "Dockerfile",
    ROOT / "deploy/kubernetes/cpu/fused-mlp.yaml",
    ROOT / "deploy/kubernetes/gpu/deployment.yaml",
    ROOT / "deploy/compose.yaml",
    ROOT / "deploy/compose.gpu.yaml",
]


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.name)
def test_every_setting_named_exists(path):
    named = set(re.findall(rf"\b{ENV_PREFIX}([A-Z0-9_]+)", path.read_text()))
    assert named, "it configures nothing"
    settings = {name.lower() for name in named if not name.startswith("TARGET")}  # those are of the client
    assert settings <= Settings.model_fields.keys()


def test_the_image_exposes_the_default_ports():
    fields = Settings.model_fields
    exposed = re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    assert exposed[1].split() == [
        str(fields[name].default) for name in ("rest_port", "grpc_port", "metrics_port")
    ]


def test_the_build_context_has_every_package():
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    packages = re.search(r"wheel\.packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text())[1]
    assert set(re.findall(r'"(\w+)"', packages)) <= set(kept)
    assert all((ROOT / name).exists() for name in kept)


def test_the_default_image_is_lean_and_every_target_named_exists():
    targets = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert targets[-1] == ("runtime", "lean"), "docker build without --target takes the last one"
    names = {name for _, name in targets}
    services = read_yaml("compose.yaml")["services"].values()
    built = {service["build"]["target"] for service in services if "build" in service}
    assert built == {"torch"}, "one of them serves unfused"
    assert {*built, *re.findall(r"docker build .*--target (\S+)", DOCKERFILE)} <= names
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= names


def read_yaml(path: str) -> dict:
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_compose_mounts_what_is_there_and_publishes_to_this_machine_only():
    compose = read_yaml("compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / "deploy" / source).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_compose_on_a_gpu_has_the_gpu_and_what_triton_needs():
    services, changed = (read_yaml(name)["services"] for name in ("compose.yaml", "compose.gpu.yaml"))
    assert changed.keys() == {name for name, service in services.items() if "build" in service}
    for service in changed.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert service["environment"]["FUSED_MLP_DEVICE"] == "cuda"
        target = service["build"]["target"]
        stage = re.search(rf"^FROM \S+ AS {target}$(.*?)^FROM", DOCKERFILE, re.MULTILINE | re.DOTALL)
        assert re.search(r"apt-get install .* gcc ", stage[1])


def test_tritons_cache_is_where_code_may_run():
    """In compose, whose tmpfs are noexec, and on the GPUs of Kubernetes."""
    cache = re.search(r"TRITON_CACHE_DIR=(\S+)", DOCKERFILE)[1]
    for service in read_yaml("compose.gpu.yaml")["services"].values():
        executable = [mount.split(":")[0] for mount in service["tmpfs"] if "exec" in mount]
        assert any(cache.startswith(f"{mount}/") for mount in executable)
    pod = read_yaml("kubernetes/gpu/deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "TRITON_CACHE_DIR", "value": cache} in container["env"]
    assert any(cache.startswith(mount["mountPath"]) for mount in container["volumeMounts"])


def test_gpu_pods_go_before_their_successors_come():
    """A successor would wait for the GPU that the old pod holds."""
    rollout = read_yaml("kubernetes/gpu/deployment.yaml")["spec"]["strategy"]
    assert rollout == {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_gpu_overlay_asks_for_a_gpu_and_keeps_the_rest():
    built = {}
    for kind in ("cpu", "gpu"):
        command = ["kubectl", "kustomize", str(ROOT / "deploy/kubernetes" / kind)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        documents = {each["kind"]: each for each in yaml.safe_load_all(text)}
        built[kind] = documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    for part in ("requests", "limits"):
        assert built["gpu"]["resources"][part]["nvidia.com/gpu"] == 1
        assert "nvidia.com/gpu" not in built["cpu"]["resources"][part]
    assert built["gpu"]["startupProbe"]["grpc"] == built["cpu"]["startupProbe"]["grpc"]
    assert built["gpu"]["livenessProbe"] == built["cpu"]["livenessProbe"]
    assert built["gpu"]["securityContext"] == built["cpu"]["securityContext"]
    assert [mount["mountPath"] for mount in built["gpu"]["volumeMounts"]] == ["/var/cache/fused-mlp", "/tmp"]
    assert {"name": "FUSED_MLP_DEVICE", "value": "cuda"} in built["gpu"]["env"]


def test_prometheus_scrapes_the_services_of_compose_on_their_metrics_port():
    services = read_yaml("compose.yaml")["services"]
    port = Settings.model_fields["metrics_port"].default
    (job,) = read_yaml("prometheus/prometheus.yaml")["scrape_configs"]
    (targets,) = job["static_configs"]
    assert targets["targets"] == [f"{name}:{port}" for name in services if "build" in services[name]]


def test_grafana_finds_its_dashboard_and_prometheus():
    grafana = read_yaml("compose.yaml")["services"]["grafana"]
    (provider,) = read_yaml("grafana/provisioning/dashboards/fused-mlp.yaml")["providers"]
    assert any(provider["options"]["path"] in volume for volume in grafana["volumes"])
    (source,) = read_yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    scraped = read_yaml("prometheus/prometheus.yaml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_dashboard_is_what_its_script_makes():
    script = "import sys, dashboard; sys.stdout.write(dashboard.render())"
    made = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "deploy/grafana",
        capture_output=True,
        text=True,
        check=True,
    )
    committed = (ROOT / "deploy/grafana/fused-mlp.json").read_text()
    assert committed == made.stdout, "run: python deploy/grafana/dashboard.py"


@pytest.mark.parametrize(
    "command",
    [
        ["check", "config", "prometheus.yaml"],
        # The files it names are the reader's own.
        ["check", "config", "--syntax-only", "prometheus-tls.yaml"],
        ["test", "rules", "rules_test.yaml"],
    ],
)
def test_promtool_agrees(command):
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: `apt-get install prometheus` (make test does it)"
    result = subprocess.run(
        [promtool, *command], cwd=ROOT / "deploy/prometheus", capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_unit_tested():
    alerts = {
        rule["alert"] for group in read_yaml("prometheus/alerts.yaml")["groups"] for rule in group["rules"]
    }
    tested = {
        case["alertname"]
        for test in read_yaml("prometheus/rules_test.yaml")["tests"]
        for case in test.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert tested == alerts
