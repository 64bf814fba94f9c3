# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes servers under test every second, with the project's own rules."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
WINDOW = "5s"  # of every rate: a test is over in seconds


def hasten(text: str) -> str:
    """The same expression for a life of seconds: short windows, nothing to wait for."""
    text = re.sub(r"\[\d+m\]", f"[{WINDOW}]", text)
    return re.sub(r"^ *for: .*\n", "", text, flags=re.MULTILINE)


class Prometheus:
    """With TLS, the files ca.pem and token, which the project's own configuration names, are in the folder."""

    def __init__(self, folder: Path, *targets: str, tls: bool = True, features: Sequence[str] = ()) -> None:
        binary = shutil.which("prometheus")
        assert binary, "prometheus is missing: `apt-get install prometheus` (make test does it)"
        for name in ("rules.yaml", "alerts.yaml"):
            (folder / name).write_text(hasten((RULES / name).read_text()))
        settings = yaml.safe_load((RULES / f"prometheus{'-tls' * tls}.yaml").read_text())
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        settings["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [binary, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={address}", "--scrape.discovery-reload-interval=100ms",
             *(f"--enable-feature={name}" for name in features)],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; a refused query raises with Prometheus' own words."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def exemplars(self, series: str) -> list[Any]:
        """Of the last minutes; waits until a scrape has brought some."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            now = time.time()
            with contextlib.suppress(urllib.error.URLError, ValueError):  # not up yet
                found = self.get("query_exemplars", query=series, start=str(now - 300), end=str(now + 60))
                if found:
                    return list(found)
            time.sleep(0.1)  # another process scrapes in its own time
        raise AssertionError(f"no exemplars of {series}")

    def query(self, expr: str) -> list[Any]:
        return list(self.get("query", query=expr)["result"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()
