# SPDX-License-Identifier: Apache-2.0
"""Envoy as a child process of `make cluster`, the tests and the benchmarks."""

from __future__ import annotations

from pathlib import Path

from deploy.cluster.envoy import Envoy, configure
from deploy.cluster.packages import install_envoy
from fused_mlp.service.ray.endpoints import write_eds


def test_an_address_file_that_is_still_empty_is_waited_for(tmp_path: Path) -> None:
    """Envoy makes the file before it writes the address into it."""
    configure(tmp_path, any_ports=True)
    write_eds(tmp_path, [])
    late = ("sh", "-c", 'touch "$0/admin-address" && exec "$@"', str(tmp_path))
    with Envoy(install_envoy(), tmp_path, prefix=late) as envoy:
        assert envoy.replicas() == {}
        assert envoy.target.startswith("127.0.0.1:")
