# SPDX-License-Identifier: Apache-2.0
"""Every expression of the dashboard, the rules and the alerts against a real Prometheus that scrapes three live servers
under load: each must parse, name only metrics that exist, and return data."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml

from fused_mlp.service.client import Client, PredictError, Tls
from tests.support.certificates import Certificates
from tests.support.prometheus import WINDOW, Prometheus, hasten
from tests.support.server import Server

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
# What Grafana puts in for its variables; every way to compare is tried.
GROUPINGS = ("variant", "variant, version", "variant, instance", "variant, job")
REPLICAS = 3
SCRAPES = 9  # more than the windows hold
COMPARISON = re.compile(r"\s*(?:[<>]=?|[!=]=)\s*[\d.]+\s*$")
_KEYWORDS = {
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "and",
    "or",
    "unless",
    "bool",
    "offset",
}


def panel_expressions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana/fused-mlp.json").read_text())
    for panel in dashboard["panels"]:
        for number, target in enumerate(panel.get("targets", [])):
            for grouping in GROUPINGS if "$by" in target["expr"] else GROUPINGS[:1]:
                expr = target["expr"].replace("$__rate_interval", WINDOW).replace("$by", grouping)
                expr = (
                    expr.replace("$job", ".+").replace("$model", "digits").replace("[$band:15s]", "[5s:1s]")
                )
                yield f"panel {panel['title']} {number} by {grouping}", expr


def variable_expressions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana/fused-mlp.json").read_text())
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            yield f"variable {variable['name']}", f"count by ({label}) ({series.replace('$job', '.+')})"


def rule_expressions() -> Iterator[tuple[str, str]]:
    for name in ("rules.yaml", "alerts.yaml"):
        for group in yaml.safe_load(hasten((DEPLOY / "prometheus" / name).read_text()))["groups"]:
            for rule in group["rules"]:
                expr, what = rule["expr"], rule.get("record") or rule["alert"]
                if (
                    "alert" in rule
                ):  # a server that is well has nothing over the limit: the rest must have data
                    assert COMPARISON.search(expr), f"{what}: expected a comparison with a number at its end"
                    expr = COMPARISON.sub("", expr)
                yield what, expr


def autoscaler_expressions() -> Iterator[tuple[str, str]]:
    """Of KEDA, and the metrics that the HorizontalPodAutoscaler reads through an adapter."""
    folder = DEPLOY / "kubernetes/components"
    for trigger in yaml.safe_load((folder / "keda/scaled-object.yaml").read_text())["spec"]["triggers"]:
        yield f"autoscaler {trigger['name']}", hasten(trigger["metadata"]["query"])
    for metric in yaml.safe_load((folder / "hpa/hpa.yaml").read_text())["spec"]["metrics"]:
        yield f"autoscaler {metric['pods']['metric']['name']}", metric["pods"]["metric"]["name"]


def page_expressions() -> Iterator[tuple[str, str]]:
    """What readers are told to start from."""
    page = (DEPLOY.parent / "docs" / "operations" / "metrics.md").read_text()
    for number, expr in enumerate(re.findall(r"^```promql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)):
        yield f"page {number}", hasten(expr)


EXPRESSIONS = [
    *panel_expressions(),
    *variable_expressions(),
    *rule_expressions(),
    *autoscaler_expressions(),
    *page_expressions(),
]


def metric_names(expr: str) -> set[str]:
    """What is left of an expression without selectors, groupings, windows, functions and numbers."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", expr)
    bare = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\boffset\s+\w+", " ", bare)
    names = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\(|[a-zA-Z0-9_:])", bare)
    return set(names) - _KEYWORDS


class Load:
    """Some traffic until closed: single rows, several, and what cannot be right."""

    def __init__(self, target: str, tls: Tls) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(target, tls))
        self._thread.start()

    def _run(self, target: str, tls: Tls) -> None:
        with Client(target, tls=tls, balancing="round_robin") as client:
            example = np.asarray(client.model("digits").versions[-1].example, np.float32)
            turn = 0
            while not self._stop.wait(0.01):
                turn += 1
                client.predict("digits", np.stack([example] * (1 + turn % 5)))
                if turn % 20 == 0:
                    with pytest.raises(PredictError):
                        client.predict("digits", example[:-1])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Prometheus]:
    """Of servers with everything that has metrics: also int8, TLS, and a token for the scrape."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "ca.pem").write_bytes(certificates.ca.read_bytes())
    (folder / "token").write_text("read-only")
    (folder / "callers").write_text(f"sha256:{hashlib.sha256(b'read-only').hexdigest()}")
    certificate, key = certificates.sign_server(
        "dashboard", days=30
    )  # one that is about to expire would be told
    settings = {"tls_certificate": certificate, "tls_key": key, "metrics_tls": 1}
    settings |= {"policy": json.dumps({"*": {"precision": "int8"}})}
    settings |= {"split": 0.3, "shadow": 0.5, "callers": json.dumps({"metrics": str(folder / "callers")})}
    with ExitStack() as stack:
        with ThreadPoolExecutor(REPLICAS) as starting:
            started = [starting.submit(Server, **settings) for _ in range(REPLICAS)]
        servers = [stack.enter_context(each.result()) for each in started]
        target = f"ipv4:{','.join(server.target for server in servers)}"
        stack.callback(Load(target, Tls(root_ca=certificates.ca, server_name="localhost")).close)
        scrapes = [server.metrics_url.removeprefix("https://") for server in servers]
        running = stack.enter_context(Prometheus(folder, *scrapes))
        until = time.monotonic() + 60
        while not scraped(running):
            assert time.monotonic() < until, "Prometheus did not come up"
            time.sleep(0.2)
        yield running


def scraped(prometheus: Prometheus) -> bool:
    try:
        found = prometheus.query("count_over_time(fused_mlp_build_info[1m])")
    except (urllib.error.URLError, ValueError):
        return False
    return len(found) == REPLICAS and all(float(each["value"][1]) >= SCRAPES for each in found)


def problem(prometheus: Prometheus, expr: str) -> str:
    """What is wrong with an expression, or nothing."""
    try:
        found = prometheus.query(expr)
    except ValueError as error:
        return f"does not parse: {error}"
    unknown = metric_names(expr) - set(prometheus.get("label/__name__/values"))
    if unknown:
        return f"no such metric: {', '.join(sorted(unknown))}"
    values = [float(series["value"][1]) for series in found]
    return "" if any(np.isfinite(values)) else "returns no data"


@pytest.mark.parametrize("expr", [e for _, e in EXPRESSIONS], ids=[name for name, _ in EXPRESSIONS])
def test_expression_has_data(prometheus: Prometheus, expr: str) -> None:
    assert problem(prometheus, expr) == "", expr


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("sum by (variant) (rate(fused_mlp_request_total[5s]))", "no such metric: fused_mlp_request_total"),
        (
            'fused_mlp_queue_rows / fused_mlp_queue_rows_max{model="digits"}',
            "no such metric: fused_mlp_queue_rows_max",
        ),
        ("sum by (variant (rate(fused_mlp_requests_total[5s]))", "does not parse"),
        ('rate(fused_mlp_requests_total{variant="fuzed"}[5s])', "returns no data"),
    ],
)
def test_a_broken_panel_would_be_found(prometheus: Prometheus, expr: str, words: str) -> None:
    assert words in problem(prometheus, expr)


def test_no_alert_fires_while_all_is_well(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    firing = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert firing <= {"FusedMlpSaturated"}  # without its quarter of an hour: other tests may have the cores


def test_fleet_row_has_each_replica_and_an_even_spread(prometheus: Prometheus) -> None:
    panels = {name: expr for name, expr in EXPRESSIONS if name.startswith("panel ")}
    (replicas,) = prometheus.query(panels["panel Replicas 0 by variant"])
    assert float(replicas["value"][1]) == REPLICAS
    for title in ("Utilisation by replica", "Requests by replica", "Versions by replica"):
        found = prometheus.query(panels[f"panel {title} 0 by variant"])
        assert len({each["metric"]["instance"] for each in found}) == REPLICAS, title
    (spread,) = prometheus.query(panels["panel Spread of requests 0 by variant"])
    # Each gets every third request; scrapes within the short window are not at the same moment.
    assert 1 <= float(spread["value"][1]) < 1.3


def test_every_metric_of_the_service_is_looked_at(prometheus: Prometheus) -> None:
    """What is exported and shown nowhere is either forgotten or not needed."""
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name) for _, expr in EXPRESSIONS for name in metric_names(expr)
    }
    exported = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in prometheus.get("label/__name__/values")
        if name.startswith("fused_mlp_")
    }
    # Counted for other readers: rows and batches by release for capacity, callers that may not administer in the log
    # too. A server that is well has none of fused_mlp_kernel_errors_total.
    elsewhere = {
        "fused_mlp_admin_refused_total",
        "fused_mlp_log_lines_dropped_total",  # the log itself says so
        "fused_mlp_rows_total",
        "fused_mlp_wasted_rows_total",  # the kernel time of these rows is shown
        "fused_mlp_batches_total",
        "fused_mlp_shadow_rows_total",
        "fused_mlp_policy_allow_override",
        "fused_mlp_policy_weight",
    }
    assert exported - shown == elsewhere


def test_report_from_recorded_metrics(prometheus: Prometheus, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fused_mlp.service.cli.program import app

    page = tmp_path / "report.html"
    arguments = ["ab", "--from-prometheus", prometheus.url, "--since", "12s", "--json", "--html", str(page)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = {row["name"]: row for row in report["rows"]}
    for name in ("latency p50", "latency p99", "kernel p50", "answered"):
        assert rows[name]["fused"] > 0, name
        assert rows[name]["unfused"] > 0, name
    ratio = rows["kernel p50"]["ratio"]
    assert 1 < ratio["low"] <= ratio["value"] <= ratio["high"]  # microseconds against tens of them
    assert rows["server CPU per request"]["fused"] is None  # one process served both
    assert report["difference"]["rows"] > 0
    assert report["verdict"] in page.read_text()
