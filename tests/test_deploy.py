"""What deploys the service names things that exist: settings, ports, files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENTS = [
    ROOT / "Dockerfile",
    *(p for p in (ROOT / "deploy").rglob("*") if p.suffix in (".yaml", ".yml")),
]


@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.name)
def test_every_setting_named_exists(path):
    named = set(re.findall(rf"\b{ENV_PREFIX}([A-Z0-9_]+)", path.read_text()))
    assert named, "it configures nothing"
    settings = {name.lower() for name in named if not name.startswith("TARGET")}  # those are of the client
    assert settings <= Settings.model_fields.keys()


def test_the_image_exposes_the_default_ports():
    fields = Settings.model_fields
    exposed = re.search(r"^EXPOSE (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert exposed[1].split() == [str(fields[name].default) for name in ("grpc_port", "metrics_port")]


def test_the_build_context_has_every_package():
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    packages = re.search(r"wheel\.packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text())[1]
    assert set(re.findall(r'"(\w+)"', packages)) <= set(kept)
    assert all((ROOT / name).exists() for name in kept)
