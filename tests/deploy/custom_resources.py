# SPDX-License-Identifier: Apache-2.0
"""Checks manifests of kinds that are not Kubernetes' own (KEDA, the Prometheus operator, the Gateway API) against types
that were generated from their definitions: by TypeScript's compiler, which refuses unknown and missing fields and wrong
types, and by the validators, which know patterns, ranges and enumerations. Packages from npm, in the tests' cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.foreign_clients import install_node

PACKAGES = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "typescript@5",
)
# By API group: the package that has its kinds.
GROUPS = {
    "keda.sh": "keda",
    "gateway.networking.k8s.io": "gateway-api",
    "monitoring.coreos.com": "prometheus-operator",
}


def is_known(manifest: dict[str, Any]) -> bool:
    return _group(manifest) in GROUPS


def _group(manifest: dict[str, Any]) -> str:
    group: str = manifest["apiVersion"].partition("/")[0]
    return group


def problems(manifests: list[dict[str, Any]]) -> str:
    """What the compiler and the validators have to say, or nothing."""
    if not manifests:
        return ""
    assert shutil.which("node"), "Node.js is missing: make install-nightly adds it"
    folder = install_node("custom-resources", PACKAGES)
    program = folder / "check.mts"
    program.write_text("\n".join(_statements(manifests)))
    options = ["--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"]
    compiled = _run([str(folder / "node_modules/.bin/tsc"), *options, program.name], folder)
    return compiled or _run(["node", "check.mjs"], folder)


def _statements(manifests: list[dict[str, Any]]) -> list[str]:
    lines = []
    for number, manifest in enumerate(manifests):
        kind = manifest["kind"]
        module = f"{GROUPS[_group(manifest)]}/{manifest['apiVersion']}"
        typed = {field: value for field, value in manifest.items() if field not in ("apiVersion", "kind")}
        lines += [
            f'import {{ {kind} as Kind{number} }} from "@kubernetes-models/{module}/{kind}";',
            f"new Kind{number}({json.dumps(typed)}).validate();",
        ]
    return lines


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
