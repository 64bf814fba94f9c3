"""What is served, and how, for /status.json: everything the live page needs besides metrics."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from importlib.metadata import version as package_version
from typing import Any

from fused_mlp.models import MlpSpec
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion


def status_json(catalog: Catalog, front: str, ready: bool, name: str | None = None) -> str:
    """`name`: of the one model to tell of; None: all. A name that is not served: none."""
    return json.dumps(
        {
            "version": package_version("fused-mlp"),
            "front": front,
            "ready": ready,
            "time": time.time(),
            "default_policy": catalog.default_policy.model_dump(),
            "models": [_model(model) for model in catalog.models() if name in (None, model.name)],
        }
    )


def _model(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "default_version": model.default.version if model.default else None,
        "policy": model.policy.model_dump(),
        "versions": [_version(version) for version in model.versions],
    }


def _outputs(spec: MlpSpec) -> list[dict[str, Any]]:
    return [
        {"name": output.name, "width": width, "squeeze": output.squeeze}
        for output, width in zip(spec.outputs, spec.output_widths, strict=True)
    ]


def _version(served: ServedVersion) -> dict[str, Any]:
    """`variant` answers requests that name none; `fallback` says why it differs from the policy."""
    spec = served.spec
    return {
        "version": served.version,
        "state": served.state,
        "reason": served.reason,
        "variant": served.variant,
        "fallback": asdict(served.fallback) if served.fallback else None,
        "shape": spec.summary() if spec else None,
        "input_shape": spec.input_shape or (spec.in_features,) if spec else None,
        "outputs": _outputs(spec) if spec else None,
        "dtype": spec.dtype if spec else None,
        "precision": served.precision if spec else None,
        "precision_error": served.precision_error.model_dump() if served.precision_error else None,
        "parameters": spec.parameters if spec else None,
        "description": spec.description if spec else None,
        "kernels": [asdict(info) for info in served.kernels],
        "shadow_tolerance": served.shadow.tolerance if served.shadow else None,
    }
