"""Prometheus with the rules of deploy/prometheus, as a child process that scrapes every replica and Envoy."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import yaml

from deploy.cluster.envoy import ENDS_WITH_US, wait_for

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
    with (folder / "prometheus.log").open("w+") as log:
        process = subprocess.Popen(
            [*ENDS_WITH_US, binary, f"--config.file={path}", f"--storage.tsdb.path={folder / 'prometheus'}",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: process.poll() is not None or _ready(address), "Prometheus is ready")
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"Prometheus did not start: {log.read().strip().splitlines()[-1]}")
    return process


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10):
            return True
    except OSError:
        return False
