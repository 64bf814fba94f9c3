# SPDX-License-Identifier: Apache-2.0
"""Which module may import which: service -> kernels -> models, protos a leaf, a few libraries in one place each, and
our own code only as fused_mlp. Reads the source with `ast`, so that nothing is run and an import inside a function
counts as well."""

import ast
import re
import sys
import tomllib
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
        "service/fronts/python/credentials.py",
        "service/fronts/python/server.py",
        "service/client/*.py",
    ),
    "prometheus_client": ("service/observe/scrape/metrics.py",),
    "opentelemetry": (
        "service/observe/otel/protocols.py",
        "service/observe/otel/spans.py",
        "service/observe/otel/exporter.py",
        "service/client/propagation.py",
    ),
    "triton": (
        "kernels/cuda/device/*.py",
        "kernels/cuda/running/triton_programs.py",
        "kernels/cuda/check/compilation.py",
    ),
    "onnx": ("models/importers/onnx/*.py",),
    "sklearn": ("models/demo/train_digits.py",),
    "safetensors": ("models/repository/version_directory.py", "models/weights/safetensors_file.py"),
    "torch": (
        "models/importers/checkpoints/pickles.py",
        "models/importers/from_torch.py",
        "models/importers/torch/*.py",
        "models/demo/train_digits.py",
        "kernels/backends/eager.py",
        "kernels/backends/torch.py",
        "kernels/cuda/backend.py",
        "kernels/cuda/tf32.py",
        "kernels/cuda/example/program.py",
        "kernels/cuda/running/*.py",
        "kernels/nn/*.py",
        "kernels/profile/*.py",
    ),
    "pydantic": (
        "models/*.py",
        "service/settings/*.py",
        "service/policy/*.py",
        "service/access/key_file.py",
    ),
    "typer": ("service/cli/*.py",),
    "ray": ("service/ray/*.py",),
}


# For types alone, torch may be named anywhere: that imports nothing.
TYPES_ANYWHERE = ("torch",)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """The dotted names a module imports, wherever in it, relative ones resolved."""
    tree = ast.parse(source)
    typing_only = {
        child
        for node in ast.walk(tree)
        if is_for_types(node)
        for part in node.body
        for child in ast.walk(part)
    }
    for node in ast.walk(tree):
        if node in typing_only and imported_tops(node) <= set(TYPES_ANYWHERE):
            continue
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


def imported_tops(node: ast.AST) -> set[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return {name.split(".", 1)[0] for name in names}


def dotted(path: str) -> str:
    return "fused_mlp." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def bare_names(path: str, source: str) -> list[str]:
    """Imports of our rooms by their folder's name: those names belong to other people's packages."""
    return [
        f"{path}: imports {name}; say fused_mlp.{name}"
        for name in imports(source, dotted(path), path.endswith("/__init__.py"))
        if name.split(".", 1)[0] in PACKAGES
    ]


def problems(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at `path`, which is relative to the root."""
    package = path.split("/", 1)[0]
    found = bare_names(path, source)
    for name in imports(source, dotted(path), path.endswith("/__init__.py")):
        top = name.removeprefix("fused_mlp.").split(".", 1)[0]
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


def test_only_fused_mlp_is_imported_anywhere():
    files = [
        path
        for folder in ("tests", "bench", "deploy", "fused_mlp")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    assert len(files) > 100
    found = [p for path in files for p in bare_names(str(path.relative_to(ROOT)), path.read_text())]
    assert found == []


# Works on the catalog, which works on the rest of its room.
UPPER_FLOORS = ("policy.rollout",)


def room(module: str) -> str:
    """Of service/: a folder, or a module that lies beside the folders."""
    parts = module.split(".")
    if parts[:2] != ["fused_mlp", "service"] or len(parts) < 3:
        return ""
    floor = ".".join(parts[2:4])
    return floor if floor in UPPER_FLOORS else parts[2]


def circles(used: dict[str, set[str]]) -> list[str]:
    """Pairs of rooms of which each is reached from the other."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = used.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    everywhere = {name: reached(name) for name in used}
    return [f"{a} -> {b}" for a, others in used.items() for b in others if a in everywhere.get(b, ())]


def test_rooms_of_the_service_do_not_import_each_other_in_circles():
    used: dict[str, set[str]] = {}
    for path in sources():
        if here := room(dotted(path)):
            names = imports((ROOT / path).read_text(), dotted(path), path.endswith("/__init__.py"))
            used.setdefault(here, set()).update({room(name) for name in names} - {here, ""})
    assert len(used) > 10
    assert circles(used) == []


def test_a_circle_would_be_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b -> c", "c -> b"]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_all_packages_are_looked_at():
    looked_at = {path.split("/", 1)[0] for path in sources()}
    assert looked_at == set(PACKAGES)
    for library, patterns in ONLY_IN.items():
        for pattern in patterns:
            assert any(fnmatch(path, pattern) for path in sources()), f"{library}: {pattern} matches nothing"


# Which extras a module may count on: the first pattern that matches. The client gets by without any.
EXTRAS = {
    "protos/*": (),
    "service/client/propagation.py": ("otel",),  # imported only where it is installed
    "service/observe/otel/*": ("serve", "otel"),
    "service/client/*": ("torch",),  # its tensors only, and only for type checkers
    "models/importers/onnx/*": ("serve", "torch", "onnx"),
    "models/demo/train_digits.py": ("serve", "torch", "train"),
    "kernels/cuda/*": ("serve", "torch", "cuda-check"),
    "service/csrc/*/tests/*": ("serve", "torch", "dev"),
    "service/reload/*": ("serve", "watch"),
    "service/stores/*": ("serve", "s3"),
    "service/ray/*": ("serve", "ray"),
    "*": ("serve", "torch"),
}


def test_third_party_imports_are_declared_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        "google": "protobuf",
        "grpc": "grpcio",
        "sklearn": "scikit-learn",
        "opentelemetry": "opentelemetry-sdk",
        "pydantic_core": "pydantic",  # which brings it, in the version that it needs
    }

    def declared(extras: tuple[str, ...]) -> set[str]:
        groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        return {re.split(r"[>=\[]", line)[0].replace("_", "-") for group in groups for line in group}

    for path in sources():
        extras = next(extras for pattern, extras in EXTRAS.items() if fnmatch(path, pattern))
        for name in imports((ROOT / path).read_text(), dotted(path)):
            top = name.split(".", 1)[0]
            if top and top not in sys.stdlib_module_names and top != "fused_mlp":
                package = names.get(top, top).replace("_", "-")
                assert package in declared(extras), f"{path} imports {top}, which no extra of {extras} brings"


@pytest.mark.parametrize(
    ("path", "source", "text"),
    [
        ("models/x.py", "import fused_mlp.kernels", "models must not know kernels"),
        ("models/x.py", "from fused_mlp.kernels.base import Kernel", "models must not know kernels"),
        ("models/x.py", "def f():\n    import fused_mlp.service.app", "models must not know service"),
        ("models/demo/x.py", "from ...service import app", "models must not know service"),
        ("kernels/x.py", "from fused_mlp.service import settings", "kernels must not know service"),
        ("kernels/x.py", "import fused_mlp.protos.fused_mlp_pb2", "kernels must not know protos"),
        (
            "kernels/x.py",
            "import importlib; importlib.import_module('fused_mlp.service')",
            "kernels must not know service",
        ),
        ("protos/x.py", "from fused_mlp.models import Mlp", "protos must not know models"),
        ("kernels/x.py", "import grpc", "grpc belongs into"),
        ("service/engine.py", "from grpc import aio", "grpc belongs into"),
        ("service/engine.py", "import grpc.aio as g", "grpc belongs into"),
        ("service/fronts/python/server.py", "import prometheus_client", "prometheus_client belongs into"),
        ("kernels/backends/cpu.py", "if True:\n    import triton.language as tl", "triton belongs into"),
        ("kernels/cuda/planning/x.py", "import torch", "torch belongs into"),
        ("models/weights/mlp.py", "import torch", "torch belongs into"),
        ("kernels/base.py", "def f():\n    from torch import nn", "torch belongs into"),
        ("kernels/backends/cpu.py", "if TYPE_CHECKING:\n    import grpc", "grpc belongs into"),
        ("service/x.py", "from tests.support.puppet import Puppet", "must not know tests"),
        ("service/x.py", "import kernels", "say fused_mlp.kernels"),
        ("kernels/x.py", "def f():\n    from models.program.spec import MlpSpec", "say fused_mlp.models"),
    ],
)
def test_a_violation_would_be_found(path, source, text):
    assert any(text in problem for problem in problems(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("service/x.py", "from fused_mlp import kernels, models; from fused_mlp.protos import fused_mlp_pb2"),
        ("kernels/cuda/device/x.py", "import triton; from fused_mlp.models import Mlp"),
        ("service/handlers/__init__.py", "from . import inference; from ..errors import InvalidInput"),
        ("service/client/sync.py", "import grpc"),
        ("models/x.py", "import numpy"),
        ("models/importers/from_torch.py", "import torch"),
        ("models/weights/mlp.py", "if TYPE_CHECKING:\n    from torch import nn"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert problems(path, source) == []
