# SPDX-License-Identifier: Apache-2.0
"""Programs with the stock gRPC library of their language: a load generator (tests/conformance/<language>) and the
example of docs/clients/languages.md (examples/clients/<language>), built with Debian's packages into the cache of
foreign_clients. A build is done again when a source has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.cluster.packages import CACHE, ROOT, locked
from tests.support.foreign_clients import CASES, install_node

EXAMPLES = ROOT / "examples" / "clients"
PROTO = "fused_mlp/protos/fused_mlp.proto"
GO_LIBRARIES = Path("/usr/share/gocode")
JAVA_LIBRARIES = Path("/usr/share/java")
JARS = (
    "geronimo-annotation-1.3-spec grpc-api grpc-context grpc-core grpc-netty grpc-protobuf grpc-protobuf-lite "
    "grpc-stub guava netty-buffer netty-codec netty-codec-http netty-codec-http2 netty-codec-socks netty-common "
    "netty-handler netty-handler-proxy netty-resolver netty-transport netty-transport-native-unix-common "
    "perfmark-api protobuf"
)


@dataclass(frozen=True)
class Program:
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *map(str, arguments)],
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object) -> str:
        return finish(self.start(*arguments))


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> str:
    """What it printed; the process has ended, whatever happens."""
    try:
        output, errors = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == 0, f"{output}\n{errors}"
    return output


@dataclass(frozen=True)
class Client:
    load: Program
    example: Program


def client(name: str) -> Client:
    """Built when this returns; skips the test where the tools of that language are missing."""
    return CLIENTS[name]()


def _go() -> Client:
    _require("go", "protoc", "protoc-gen-go")
    folder = CACHE / "go"
    sources = (CASES / "go" / "load.go", EXAMPLES / "go" / "main.go")
    environment = {
        "GO111MODULE": "off",
        "GOPATH": f"{folder}:{GO_LIBRARIES}",
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "",
    }

    def build() -> None:
        (folder / "src").mkdir()
        _run(["protoc", "-I.", f"--go_out=plugins=grpc:{folder / 'src'}", PROTO])
        for source, made in zip(sources, ("load", "example"), strict=True):
            _run(["go", "build", "-o", str(folder / made), str(source)], environment)

    _build(folder, sources, build)
    return Client(Program([str(folder / "load")]), Program([str(folder / "example")]))


def _java() -> Client:
    _require("java", "javac", "protoc", "grpc_java_plugin")
    folder = CACHE / "java"
    sources = (CASES / "java" / "Load.java", EXAMPLES / "java" / "Example.java")
    jars = [JAVA_LIBRARIES / f"{name}.jar" for name in JARS.split()]
    missing = [jar.name for jar in jars if not jar.exists()]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; make install-nightly adds them")
    classes = ":".join([str(folder / "classes"), *map(str, jars)])

    def build() -> None:
        (folder / "src").mkdir()
        plugin = f"--plugin=protoc-gen-grpc-java={shutil.which('grpc_java_plugin')}"
        _run(
            [
                "protoc",
                "-I.",
                f"--java_out={folder / 'src'}",
                f"--grpc-java_out={folder / 'src'}",
                plugin,
                PROTO,
            ]
        )
        generated = [str(path) for path in (folder / "src").rglob("*.java")]
        compile_ = ["javac", "-nowarn", "-proc:none", "-cp", classes, "-d", str(folder / "classes")]
        _run([*compile_, *generated, *map(str, sources)])

    _build(folder, sources, build)
    return Client(Program(["java", "-cp", classes, "Load"]), Program(["java", "-cp", classes, "Example"]))


def _cpp() -> Client:
    _require("g++", "pkg-config", "protoc", "grpc_cpp_plugin")
    folder = CACHE / "cpp"
    sources = (CASES / "cpp" / "load.cpp", EXAMPLES / "cpp" / "example.cpp")

    def build() -> None:
        plugin = f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}"
        _run(["protoc", "-I.", f"--cpp_out={folder}", f"--grpc_out={folder}", plugin, PROTO])
        libraries = subprocess.check_output(
            ["pkg-config", "--cflags", "--libs", "grpc++", "protobuf"], text=True
        )
        generated = folder / "fused_mlp" / "protos"
        options = ["g++", "-std=c++17", f"-I{folder}"]
        objects = []
        for part in ("fused_mlp.pb", "fused_mlp.grpc.pb"):
            objects.append(str(folder / f"{part}.o"))
            _run([*options, "-c", str(generated / f"{part}.cc"), "-o", objects[-1]])
        for source in sources:
            made = ["-o", str(folder / source.stem)]
            _run([*options, str(source), *objects, *made, *libraries.split(), "-pthread"])

    _build(folder, sources, build)
    return Client(Program([str(folder / "load")]), Program([str(folder / "example")]))


def _node() -> Client:
    _require("node")
    environment = {"NODE_PATH": str(install_node() / "node_modules"), "PROTOS": str(ROOT / "protos")}
    programs = (CASES / "node" / "load.js", EXAMPLES / "node" / "example.js")
    load, example = (Program(["node", str(path)], environment) for path in programs)
    return Client(load, example)


def _python(script: str, *arguments: str) -> Callable[[], Client]:
    load = Program([sys.executable, str(CASES / "python" / script), *arguments], {"PYTHONPATH": str(ROOT)})
    example = Program([sys.executable, str(EXAMPLES / "python" / "example.py")])
    return lambda: Client(load, example)


CLIENTS: dict[str, Callable[[], Client]] = {
    "grpc-go": _go,
    "grpc-java": _java,
    "grpc-c++": _cpp,
    "grpc-js": _node,
    "grpclib": _python("load_grpclib.py"),
    "grpcio": _python("load_grpcio.py", "sync"),
    "grpcio-aio": _python("load_grpcio.py", "aio"),
}


def _require(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; make install-nightly adds them")


def _build(folder: Path, sources: Iterable[Path], build: Callable[[], None]) -> None:
    inputs = [Path(__file__), ROOT / PROTO, *sources]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()
    with locked(folder.name):
        done = folder / ".built"
        if done.exists() and done.read_text() == digest:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        build()
        done.write_text(digest)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
