# SPDX-License-Identifier: Apache-2.0
"""Prometheus with the rules of deploy/prometheus, as a child process that scrapes every replica and Envoy."""

from __future__ import annotations

import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import yaml

from deploy.cluster.envoy import ENDS_WITH_US, wait_for
from fused_mlp.service.local import child_process

RULES = Path(__file__).resolve().parent.parent / "prometheus"


def start_prometheus(
    folder: Path, port: int, replicas: Iterable[str], envoy: str
) -> tuple[subprocess.Popen[bytes], str] | None:
    """It and its address, with another port if that one is taken. None where it is not installed. `replicas` and
    `envoy` are the host:port of what is scraped."""
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
    # Not left to it: what has taken the port may well be a Prometheus, which would answer in its place.
    address = f"127.0.0.1:{_free_port(port) or _free_port(0)}"
    with (folder / "prometheus.log").open("w+") as log:
        process = subprocess.Popen(
            [*ENDS_WITH_US, binary, f"--config.file={path}", f"--storage.tsdb.path={folder / 'prometheus'}",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: process.poll() is not None or _ready(address), "Prometheus is ready")
        except BaseException:
            child_process.end(process)
            raise
        if process.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"Prometheus did not start: {(log.read().strip().splitlines() or ['?'])[-1]}")
    return process, address


def _free_port(wanted: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Prometheus does
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return None
        port: int = probe.getsockname()[1]
    return port


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10):
            return True
    except OSError:
        return False
