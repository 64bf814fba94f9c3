"""Who may import whom: service -> kernels -> models, protos a leaf, and a few libraries in one place each.
Reads the source with `ast`, so that nothing is run and an import inside a function counts as well."""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("models", "kernels", "protos", "service")

# Which of our packages each may import, itself aside.
MAY_IMPORT = {
    "protos": set(),
    "models": set(),
    "kernels": {"models"},
    "service": {"models", "kernels", "protos"},
}

# Where a library may be imported. Everything outside the list must not know it.
ONLY_IN = {
    "grpc": (
        "service/python_front.py",
        "service/client/*.py",
        "service/cli/connection.py",  # turns what a client's call raises into one line
        "protos/*_pb2_grpc.py",
    ),
    "prometheus_client": ("service/metrics.py",),
    "triton": ("kernels/cuda/*.py",),
    "onnx": ("models/onnx_graph.py",),
    "sklearn": ("models/demo/train_digits.py",),
    "safetensors": ("models/native_format.py", "models/safetensors_checkpoint.py"),
    "pydantic": ("models/*.py", "service/*.py"),
    "pydantic_settings": ("service/*.py",),
    "typer": ("service/cli/*.py",),
}


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """The dotted names a module imports, wherever in it, relative ones resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def problems(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at `path`, which is relative to the root."""
    package = path.split("/", 1)[0]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = []
    for name in imports(source, module, path.endswith("/__init__.py")):
        top = name.split(".", 1)[0]
        if top in PACKAGES and top != package and top not in MAY_IMPORT[package]:
            found.append(f"{path}: {package} must not know {top} (imports {name})")
        if top in ("tests", "bench"):
            found.append(f"{path}: what is shipped must not know {top} (imports {name})")
        allowed = ONLY_IN.get(top)
        if allowed is not None and not any(fnmatch(path, pattern) for pattern in allowed):
            found.append(f"{path}: {top} belongs into {' or '.join(allowed)} only")
    return found


def sources() -> list[str]:
    return [
        str(path.relative_to(ROOT)) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]


def test_every_import_goes_the_right_way():
    found = [problem for path in sources() for problem in problems(path, (ROOT / path).read_text())]
    assert found == []


def test_all_packages_are_looked_at():
    looked_at = {path.split("/", 1)[0] for path in sources()}
    assert looked_at == set(PACKAGES)
    for library, patterns in ONLY_IN.items():
        for pattern in patterns:
            assert any(fnmatch(path, pattern) for path in sources()), f"{library}: {pattern} matches nothing"


def test_third_party_imports_are_declared_dependencies():
    """What a fresh `pip install` brings has to be enough, extras aside."""
    text = (ROOT / "pyproject.toml").read_text().lower().replace("-", "_")
    names = {
        "google": "protobuf",
        "grpc": "grpcio",
        "grpc_health": "grpcio_health_checking",
        "grpc_reflection": "grpcio_reflection",
        "grpc_status": "grpcio_status",
        "sklearn": "scikit_learn",
    }
    for path in sources():
        for name in imports((ROOT / path).read_text(), path.removesuffix(".py").replace("/", ".")):
            top = name.split(".", 1)[0]
            if top and top not in sys.stdlib_module_names and top not in PACKAGES:
                assert f'"{names.get(top, top)}' in text, f"{path} imports {top}, which is no dependency"


@pytest.mark.parametrize(
    ("path", "source", "text"),
    [
        ("models/x.py", "import kernels", "models must not know kernels"),
        ("models/x.py", "from kernels.base import Kernel", "models must not know kernels"),
        ("models/x.py", "def f():\n    import service.app", "models must not know service"),
        ("models/demo/x.py", "from ...service import app", "models must not know service"),
        ("kernels/x.py", "from service import settings", "kernels must not know service"),
        ("kernels/x.py", "import protos.fused_mlp_pb2", "kernels must not know protos"),
        (
            "kernels/x.py",
            "import importlib; importlib.import_module('service')",
            "kernels must not know service",
        ),
        ("protos/x.py", "from models import Mlp", "protos must not know models"),
        ("kernels/x.py", "import grpc", "grpc belongs into"),
        ("service/engine.py", "from grpc import aio", "grpc belongs into"),
        ("service/engine.py", "import grpc.aio as g", "grpc belongs into"),
        ("service/python_front.py", "import prometheus_client", "prometheus_client belongs into"),
        ("kernels/cpu.py", "if True:\n    import triton.language as tl", "triton belongs into"),
        ("service/x.py", "from tests.puppet import Puppet", "must not know tests"),
    ],
)
def test_a_violation_would_be_found(path, source, text):
    assert any(text in problem for problem in problems(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("service/x.py", "import kernels, models; from protos import fused_mlp_pb2"),
        ("kernels/cuda/x.py", "import triton; from models import Mlp"),
        ("service/handlers/__init__.py", "from . import inference; from ..errors import InvalidInput"),
        ("service/client/sync.py", "import grpc"),
        ("models/x.py", "import numpy, torch"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert problems(path, source) == []
