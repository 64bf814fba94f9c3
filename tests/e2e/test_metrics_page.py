# SPDX-License-Identifier: Apache-2.0
"""docs/operations/metrics.md: every metric with its type and labels as a live server has them, and every alert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fused_mlp.service.client import Client
from fused_mlp.service.observe.scrape.model_metrics import FAMILIES
from tests.support.server import Server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "metrics.md").read_text()
TABLES = PAGE.partition("<!-- metrics -->")[2].partition("<!-- /metrics -->")[0]
ROW = re.compile(r"^\| `(fused_mlp_\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", re.MULTILINE)
DESCRIBED = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(TABLES)}


def written_names() -> set[str]:
    """Of all families that the code can export, as their series are called."""
    names = {family.name + ("_total" if family.kind == "counter" else "") for family in FAMILIES}
    text = (ROOT / "service" / "observe" / "scrape" / "metrics.py").read_text()
    for kind, name in re.findall(r'(Counter|Gauge)MetricFamily\(\s*f?"(fused_mlp_\w+)"', text):
        names.add(name + ("_total" if kind == "Counter" else ""))
    gauges, counters = (
        text.partition(f"def _front_{kind}")[2].partition("\ndef ")[0] for kind in ("gauges", "counters")
    )
    names |= {
        f"fused_mlp_front_{name}" for name in re.findall(r'^        \("(\w+)", "', gauges, re.MULTILINE)
    }
    names |= {
        f"fused_mlp_front_{name}_total"
        for name in re.findall(r'^        \("(\w+)", "', counters, re.MULTILINE)
    }
    return names


def test_page_has_every_metric_of_the_code_and_no_other() -> None:
    assert DESCRIBED.keys() == written_names()


@pytest.fixture(scope="module")
def busy() -> Iterator[Server]:
    """A server with something in most series."""
    policy = '{"*": {"precision": "int8"}}'
    with Server(split=0.5, shadow=1, policy=policy, max_loaded_bytes=1 << 30, load="lazy") as server:
        with Client(server.target) as client:
            example = np.asarray(client.model("digits").versions[-1].example, np.float32)
            for _ in range(20):
                client.predict("digits", example)
        yield server


def test_types_and_labels_are_those_of_a_live_server(busy: Server) -> None:
    seen = 0
    for family in text_string_to_metric_families(busy.get("/metrics")[1]):
        if not family.name.startswith("fused_mlp_") or not family.samples:
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        assert DESCRIBED[name] == (family.type, labels), name
        seen += 1
    assert seen > 40


def test_every_alert_has_a_section_and_no_other() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    assert re.findall(r"^### (FusedMlp\w+)$", PAGE, re.MULTILINE) == alerts


def test_every_alert_names_its_section() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        section = f"docs/operations/metrics.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook"] == section
