# SPDX-License-Identifier: Apache-2.0
"""What deploys the service names things that exist: settings, ports, files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.cluster.envoy import configure
from deploy.cluster.packages import install_envoy
from fused_mlp.service.ray.endpoints import write_eds
from fused_mlp.service.settings.limits import Limits
from fused_mlp.service.settings.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
DEPLOYMENTS = [
    ROOT / "Dockerfile",
    ROOT / "deploy/kserve/runtime.yaml",
    ROOT / "deploy/compose.yaml",
    ROOT / "deploy/compose.gpu.yaml",
]


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.name)
def test_every_setting_named_exists(path):
    named = set(re.findall(rf"\b{ENV_PREFIX}([A-Z0-9_]+)", path.read_text()))
    assert named, "it configures nothing"
    settings = {
        name.lower() for name in named if not name.startswith(("TARGET", "CORES"))
    }  # of clients and kernels
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
    assert targets[-1] == ("lean-dependencies", "lean"), "docker build without --target takes the last one"
    names = {name for _, name in targets}
    services = read_yaml("compose.yaml")["services"].values()
    built = {service["build"]["target"] for service in services if "build" in service}
    assert built == {"torch"}, "one of them serves unfused"
    assert {*built, *re.findall(r"docker build .*--target (\S+)", DOCKERFILE)} <= names
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= names


@pytest.mark.parametrize("target", ["lean", "torch", "cuda"])
def test_a_change_of_the_code_changes_the_last_layer_alone(target):
    stage = re.compile(r"^FROM (\S+) AS (\S+)$(.*?)(?=^FROM|\Z)", re.MULTILINE | re.DOTALL)
    stages = {name: (parent, text) for parent, name, text in stage.findall(DOCKERFILE)}
    assert stages[target][1].rstrip().endswith("COPY --from=build /opt/app /opt/app\nUSER 10001:10001")
    while target in stages:
        target, text = stages[target]
        assert "COPY . " not in text
        assert "pyproject.toml" not in text, "torch would be installed again"


def test_the_image_has_the_torch_that_make_installs():
    version = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert f"ARG TORCH_VERSION={version}\n" in DOCKERFILE


def read_yaml(path: str) -> dict:
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def test_compose_mounts_what_is_there_and_publishes_to_this_machine_only():
    compose = read_yaml("compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / "deploy" / source).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        if "build" in service:
            own = [Settings.model_fields[f"{name}_port"].default for name in ("rest", "grpc", "metrics")]
            assert [int(port.rpartition(":")[2]) for port in service["ports"]] == own


def test_compose_takes_build_arguments_and_reaps_what_ends():
    for service in read_yaml("compose.yaml")["services"].values():
        if "build" in service:
            assert service["build"]["args"].keys() <= set(
                re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE)
            )
            assert service["init"] is True


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
    """In compose, whose tmpfs are noexec."""
    cache = re.search(r"TRITON_CACHE_DIR=(\S+)", DOCKERFILE)[1]
    for service in read_yaml("compose.gpu.yaml")["services"].values():
        executable = [mount.split(":")[0] for mount in service["tmpfs"] if "exec" in mount]
        assert any(cache.startswith(f"{mount}/") for mount in executable)


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


@pytest.mark.parametrize(
    "options", [{}, {"weighted": True}, {"upstream_tls": True}], ids=["", "weighted", "tls"]
)
def test_envoy_accepts_its_configuration(options, tmp_path, certificates):
    files = certificates.server_files()
    for source, name in (
        (files.certificate, "tls.pem"),
        (files.key, "tls.key"),
        (certificates.ca, "replicas-ca.pem"),
    ):
        shutil.copy(source, tmp_path / name)
    path = configure(tmp_path, **options)
    write_eds(tmp_path, ["127.0.0.1:8001"])
    command = [str(install_envoy()), "--mode", "validate", "--log-level", "warning", "-c", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "deprecated" not in result.stderr
    written = yaml.safe_load((tmp_path / "endpoints.yaml").read_text())
    assert written == read_yaml("envoy/endpoints.yaml"), "the example is as files of a fleet are"


def test_envoy_and_a_server_may_be_on_one_machine():
    settings = read_yaml("envoy/envoy.yaml")
    places = (settings["admin"], *settings["static_resources"]["listeners"])
    ports = {each["address"]["socket_address"]["port_value"] for each in places}
    servers = {Settings.model_fields[f"{name}_port"].default for name in ("rest", "grpc", "metrics")}
    assert not ports & servers


def test_envoys_limits_are_those_of_the_server():
    (cluster,) = read_yaml("envoy/envoy.yaml")["static_resources"]["clusters"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    assert http2["max_concurrent_streams"] == Limits().max_concurrent_streams
    (breakers,) = cluster["circuit_breakers"]["thresholds"]
    assert breakers["max_requests"] > 3 * Settings.model_fields["queue_rows"].default
