# SPDX-License-Identifier: Apache-2.0
"""A bridge with network namespaces on it, one for each replica: as separate machines on a switch. Needs root."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from typing import Self

from deploy.cluster.replica import Place


def problem() -> str:
    """Why there can be no network here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed; make install-nightly adds it (iproute2)"
    try:
        with Network() as network:
            network.attach()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return ""


class Network:
    """Addresses are of 198.18.0.0/15, which is set aside for tests."""

    def __init__(self) -> None:
        # Several runs of the suite may share a machine.
        number = random.randrange(1, 512)
        self._name = f"fmlp{number}"
        self._subnet = f"198.{18 + number // 256}.{number % 256}"
        self._attached = 0
        _ip("link", "add", self._name, "type", "bridge")
        try:
            _ip("address", "add", f"{self._subnet}.1/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
        except BaseException:
            self.remove()
            raise

    def attach(self) -> Place:
        """Another machine."""
        self._attached += 1
        name, cable = f"{self._name}n{self._attached}", self._cable(self._attached)
        host = f"{self._subnet}.{self._attached + 1}"
        _ip("netns", "add", name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", cable, "master", self._name, "up")
        inside = ("-netns", name)
        _ip(*inside, "address", "add", f"{host}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        return Place(host, ("ip", "netns", "exec", name))

    def cut(self, number: int) -> None:
        """The cable of the machine that was attached as the `number`th, from 0."""
        _ip("link", "set", self._cable(number + 1), "down")

    def mend(self, number: int) -> None:
        _ip("link", "set", self._cable(number + 1), "up")

    def _cable(self, number: int) -> str:
        return f"{self._name}v{number}"

    def remove(self) -> None:
        for number in range(1, self._attached + 1):
            subprocess.run(["ip", "netns", "delete", f"{self._name}n{number}"], capture_output=True)
        subprocess.run(["ip", "link", "delete", self._name], capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
