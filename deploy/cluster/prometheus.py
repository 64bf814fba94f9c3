"""Prometheus with the rules of deploy/prometheus, as a child process that scrapes every replica and Envoy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import yaml

from deploy.cluster.envoy import ENDS_WITH_US

RULES = Path(__file__).resolve().parent.parent / "prometheus"


def start_prometheus(
    folder: Path, address: str, replicas: Iterable[str], envoy: str
) -> subprocess.Popen[bytes] | None:
    """None where it is not installed. `replicas` and `envoy` are the host:port of what is scraped."""
    if (binary := shutil.which("prometheus")) is None:
        return None
    settings = yaml.safe_load((RULES / "prometheus.yaml").read_text())
    settings["rule_files"] = [str(RULES / name) for name in settings["rule_files"]]
    (job,) = settings["scrape_configs"]
    job["static_configs"] = [{"targets": list(replicas)}]
    settings["scrape_configs"].append(
        {
            "job_name": "envoy",
            "metrics_path": "/stats/prometheus",
            "static_configs": [{"targets": [envoy]}],
        }
    )
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(settings))
    with (folder / "prometheus.log").open("w") as log:
        return subprocess.Popen(
            [*ENDS_WITH_US, binary, f"--config.file={path}", f"--storage.tsdb.path={folder / 'prometheus'}",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )  # fmt: skip
