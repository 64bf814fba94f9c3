# SPDX-License-Identifier: Apache-2.0
"""Envoy with the configuration of deploy/envoy, as a child process that ends with this one."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from fused_mlp.service.local import child_process
from fused_mlp.service.ray.endpoints import CLUSTER, write_eds

CONFIGURATION = Path(__file__).resolve().parent.parent / "envoy"
# The child gets the signal when the process that started it has ended, in whatever way.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


def configure(
    folder: Path,
    *,
    weighted: bool = False,
    upstream_tls: bool = False,
    jwt: bool = False,
    any_ports: bool = False,
) -> Path:
    """envoy.yaml in `folder`, which takes the place of /etc/envoy. Without tls.pem there, no TLS listener. Listens on
    this machine only. `any_ports`: ports that are free instead of those of the file."""
    settings = _read("envoy.yaml", folder)
    resources = settings["static_resources"]
    if not (folder / "tls.pem").exists():
        resources["listeners"] = [each for each in resources["listeners"] if each["name"] != "grpc-tls"]
    for place in (settings["admin"], *resources["listeners"]):
        address = place["address"]["socket_address"]
        address |= {"address": "127.0.0.1"} | ({"port_value": 0} if any_ports else {})
    (cluster,) = resources["clusters"]
    if weighted:
        cluster |= _read("weighted.yaml", folder)
    if upstream_tls:
        cluster |= _read("upstream-tls.yaml", folder)
    if jwt:
        for listener in resources["listeners"]:
            filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
            filters[-1:-1] = _read("jwt.yaml", folder)["http_filters"]  # the router is the last
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def _read(name: str, folder: Path) -> dict[str, Any]:
    text = (CONFIGURATION / name).read_text().replace("/etc/envoy", str(folder))
    document: dict[str, Any] = yaml.safe_load(text)
    return document


class Envoy:
    """Serving when the constructor returns. `folder` has the files that `configure` and `write_eds` write."""

    def __init__(self, binary: Path, folder: Path, workers: int = 1, prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self._log = (folder / "envoy.log").open("w+")
        address = folder / "admin-address"
        address.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [*ENDS_WITH_US, *prefix, str(binary), "--disable-hot-restart", "--concurrency", str(workers),
             "--log-level", "warning", "--admin-address-path", str(address), "-c", str(folder / "envoy.yaml")],
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: self._ended() or (address.exists() and address.read_text()), "Envoy listens")
            self.admin = f"http://{address.read_text()}"
            wait_for(self._serves, "Envoy serves")
            self.targets = {
                each["name"]: "{address}:{port_value}".format(**each["local_address"]["socket_address"])
                for each in self._get("listeners?format=json")["listener_statuses"]
            }
        except BaseException:
            self.stop()
            raise

    def _ended(self) -> bool:
        if self._process.poll() is not None:
            self._log.seek(0)
            raise RuntimeError(f"Envoy did not start: {(self._log.read().strip().splitlines() or ['?'])[-1]}")
        return False

    def _serves(self) -> bool:
        try:
            return not self._ended() and bool(self._get("server_info")["state"] == "LIVE")
        except OSError:  # answered before the listeners are there; Envoy may end for want of one
            return False

    @property
    def target(self) -> str:
        """Where gRPC is spoken, without TLS."""
        return self.targets["grpc"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def replicas(self) -> dict[str, bool]:
        """Every replica that Envoy knows, as host:port, and whether it gets calls."""
        return {
            where: host["health_status"] == {"eds_health_status": "HEALTHY"} for where, host in self._hosts()
        }

    def calls(self) -> dict[str, int]:
        """How many each of them got."""
        return {
            where: sum(int(stat.get("value", 0)) for stat in host["stats"] if stat["name"] == "rq_total")
            for where, host in self._hosts()
        }

    def _hosts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for cluster in self._get("clusters?format=json")["cluster_statuses"]:
            for host in cluster.get("host_statuses", []) if cluster["name"] == CLUSTER else []:
                yield "{address}:{port_value}".format(**host["address"]["socket_address"]), host

    def stat(self, name: str) -> int:
        """A counter or gauge of the cluster, such as upstream_rq_retry."""
        full = f"cluster.{CLUSTER}.{name}"
        stats = self._get(f"stats?format=json&filter=^{full}$")["stats"]
        return sum(int(each["value"]) for each in stats if each.get("name") == full)

    def set_replicas(self, targets: Iterable[str]) -> None:
        """Returns when exactly these are known, and all are healthy."""
        wanted = dict.fromkeys(targets, True)
        write_eds(self.folder, wanted)
        wait_for(lambda: self.replicas() == wanted, f"Envoy sends calls to {', '.join(wanted)}")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.admin}/{path}", timeout=10) as response:
            return json.load(response)

    def stop(self) -> None:
        child_process.end(self._process)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_certificate(folder: Path) -> None:
    """tls.pem and tls.key, self-signed, for localhost."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    os.chmod(folder / "tls.key", 0o600)
