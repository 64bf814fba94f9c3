# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of three raylets on this machine, each at a loopback address of its own, and the command on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from fused_mlp.service.ray.cluster import NAMESPACE

HEAD = "127.0.0.2"  # Ray takes 127.0.0.1 for the address of the machine's network card
MEMORY = 80_000_000  # of an object store, of which nothing here makes use
PATIENCE_S = 60.0


class Nodes:
    def __init__(self) -> None:
        self._next = 3
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "object_store_memory": MEMORY,
                "include_dashboard": False,
                "node_ip_address": HEAD,
            },
        )
        self.others = [self.add(), self.add()]
        ray.init(
            address=self.cluster.address,
            namespace=NAMESPACE,
            _node_ip_address=HEAD,
            logging_level="ERROR",
            log_to_driver=False,
        )

    def add(self) -> Any:
        address = f"127.0.0.{self._next}"
        self._next += 1
        return self.cluster.add_node(num_cpus=2, object_store_memory=MEMORY, node_ip_address=address)

    def kill(self, node: Any) -> None:
        """All processes of Ray on it, at once; what else runs there is left alone."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.others.remove(node)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fused_mlp.service.cli", "ray", *arguments],
            env=os.environ | {"RAY_ADDRESS": self.cluster.address},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def command(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
    """Waits for what other processes do; returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience_s, f"not within {patience_s:g} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - began


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_endpoints(folder: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((folder / "replicas.json").read_text())
    return found
