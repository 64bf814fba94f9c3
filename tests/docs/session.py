# SPDX-License-Identifier: Apache-2.0
"""One page, run as a reader would: an empty folder, ports of its own, a server if the page asks for one, its blocks in
order. What fails is told with the page, the line, the code and all that was printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.docs.page import ROOT, Block, Page
from tests.docs.processes import SECONDS_PER_BLOCK, Namespace, Process, accepts, answers
from tests.models.zoo.packages import install_packages, site_packages
from tests.support.server import environment, free_port

# As the pages write them: REST, gRPC, metrics, admin; a web server of the reader's, a collector of OpenTelemetry.
REST, GRPC, METRICS, ADMIN = 8000, 8001, 8002, 8003
PORTS = (REST, GRPC, METRICS, ADMIN, 8080, 4318)
_SHELL = ("bash", "-eu", "-o", "pipefail", "-c")
_PORT = re.compile(rf"\b({'|'.join(map(str, PORTS))})\b")
_SERVER = re.compile(r"\bfused-mlp serve\b")


class BlockFailed(AssertionError):
    pass


def packages_folder() -> Path:
    """Where transformers, keras and others are imported from, which are no part of the environment."""
    if (reason := install_packages()) is not None:
        raise BlockFailed(reason)
    return site_packages()


def run_page(page: Page, folder: Path) -> None:
    if page.not_run:
        return
    with Session(page, folder) as session:
        session.run_blocks()


class Session:
    """`environment`: for all that runs, besides what every page gets. `folder`: where it runs. `ports`: by the number
    that the page writes."""

    def __init__(self, page: Page, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._page = page
        self.folder = folder / "page"
        self.folder.mkdir()
        self.ports = {number: free_port() for number in PORTS}
        self._env = self._environment(folder / "home") | dict(environment or {})
        if page.packages:
            self._env["PYTHONPATH"] = str(packages_folder())
        self._printed: list[str] = []
        self._background: list[Process] = []
        self._server: Process | None = None  # the last that was started, by the page or by a block
        self._namespace: Namespace | None = None

    def _environment(self, home: Path) -> dict[str, str]:
        home.mkdir()
        ports = self.ports
        # Not the caller's home: a page may write there.
        return environment(
            rest_port=ports[REST],
            grpc_port=ports[GRPC],
            metrics_port=ports[METRICS],
            target=f"127.0.0.1:{ports[GRPC]}",
            target_admin=f"127.0.0.1:{ports[ADMIN]}",
        ) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }

    def __enter__(self) -> Self:
        try:
            self._fill_folder()
            for setup in self._page.setups:
                self._run_setup(setup)
            if self._page.server is not None:
                self._start_server(Block(self._page.name, 1, "sh", f"fused-mlp serve {self._page.server}"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._namespace, *reversed(self._background)):
            if process is not None:
                process.end()

    def printed(self) -> str:
        """By all blocks so far; what runs in the background comes last."""
        return "".join([*self._printed, *(process.output() for process in self._background)])

    def _fill_folder(self) -> None:
        source = ROOT / self._page.folder
        if not self._page.folder:
            return
        if source == ROOT:  # links, since it is large: a page must not write into what they name
            tracked = subprocess.run(
                ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            for name in {path.partition("/")[0] for path in tracked.stdout.splitlines()}:
                (self.folder / name).symlink_to(ROOT / name)
        else:
            shutil.copytree(source, self.folder, dirs_exist_ok=True)

    def _run_setup(self, setup: str) -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / setup)],
            cwd=self.folder,
            env=self._env | {"PYTHONPATH": os.pathsep.join([str(ROOT), self._env.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_PER_BLOCK,
        )
        if done.returncode:
            raise BlockFailed(f"{self._page.name}: the setup {setup} failed\n{done.stdout}")

    def run_blocks(self) -> None:
        for block in self._page.blocks:
            if block.is_run:
                self.run(block)

    def run(self, block: Block) -> None:
        if block.mode == "background":
            self._run_in_background(block)
        elif block.language == "python" and block.mode != "alone":
            self._run_in_namespace(block)
        else:
            self._run_to_end(block)

    def _run_to_end(self, block: Block) -> None:
        process = Process(self._command(block), self.folder, self._env)
        try:
            status = process.process.wait(SECONDS_PER_BLOCK)
        except subprocess.TimeoutExpired:
            raise self._failure(
                block, f"did not end within {SECONDS_PER_BLOCK} s", process.output()
            ) from None
        else:
            self._printed.append(process.output())
            if (status != 0) != (block.mode == "fails"):
                raise self._failure(block, f"exit status {status}", process.output())
        finally:
            process.end()

    def _run_in_namespace(self, block: Block) -> None:
        self._namespace = self._namespace or Namespace(self.folder, self._env)
        succeeded, output = self._namespace.run(
            self._with_ports(block.code), str(ROOT / block.page), block.line
        )
        self._printed.append(output)
        if succeeded == (block.mode == "fails"):
            raise self._failure(block, "succeeded" if succeeded else "failed", output)

    def _run_in_background(self, block: Block) -> None:
        if block.language == "sh" and _SERVER.search(block.code):
            self._start_server(block)
            return
        process = self._start(block)
        if block.port:
            port = int(self._with_ports(block.port))
            if not process.wait_until(lambda: accepts(port)):
                raise self._failure(block, f"port {block.port} was never open", process.output())

    def _start_server(self, block: Block) -> None:
        """A reader would end the last server first: it has the same ports."""
        if self._server is not None:
            self._background.remove(self._server)
            self._server.end()
        self._server = process = self._start(block)
        scheme = "https" if "--metrics-tls 1" in block.code else "http"
        url = f"{scheme}://127.0.0.1:{self.ports[METRICS]}/readyz"
        if not process.wait_until(lambda: answers(url)):
            raise self._failure(block, "the server was never ready", process.output())

    def _start(self, block: Block) -> Process:
        process = Process(self._command(block), self.folder, self._env)
        self._background.append(process)
        return process

    def _command(self, block: Block) -> list[str]:
        code = self._with_ports(block.code)
        if block.language == "sh":
            return [*_SHELL, code]
        return [sys.executable, "-c", code]

    def _with_ports(self, code: str) -> str:
        return _PORT.sub(lambda match: str(self.ports[int(match[0])]), code)

    def _failure(self, block: Block, what: str, output: str) -> BlockFailed:
        said = f"\n--- the server said\n{self._server.output()[-3000:]}" if self._server else ""
        return BlockFailed(f"{block.place}: {what}\n{block.code}--- output\n{output}{said}")
