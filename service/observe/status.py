# SPDX-License-Identifier: Apache-2.0
"""The served models and their settings for /status.json: everything the live page needs besides metrics."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version as package_version
from typing import Any
from urllib.parse import urlencode

from fused_mlp.models import MlpSpec
from fused_mlp.service.catalog.catalog import Catalog
from fused_mlp.service.catalog.records import ServedModel, ServedVersion
from fused_mlp.service.observe.http_request import Query

USUAL_MODELS = 100
MAX_MODELS = 1000


def status_json(catalog: Catalog, front: str, ready: bool, query: Query) -> str:
    """`model`: describe only this one (empty if it is not served). Otherwise up to `limit` models in the order of their
    names, beginning after the name `after`; `answers=no`: only models with a version that cannot answer, or whose last
    load failed. `next` continues the list. Raises BadRequest."""
    models = catalog.models()
    name, after = query.one("model"), query.one("after") or ""
    limit = query.number("limit", USUAL_MODELS, max_value=MAX_MODELS)
    broken = query.choice("answers", "no") is not None
    if name is None:
        chosen = [m for m in models if m.name > after and not (broken and m.healthy)]
    else:
        chosen = [m for m in models if m.name == name]
    shown = chosen[:limit]
    rest = {"after": shown[-1].name, "limit": limit} | ({"answers": "no"} if broken else {}) if shown else {}
    return json.dumps(
        {
            "version": package_version("fused-mlp"),
            "front": front,
            "ready": ready,
            "time": time.time(),
            "default_policy": catalog.default_policy.model_dump(),
            "counts": {
                "models": len(models),
                "versions": Counter(v.reported_state for model in models for v in model.versions),
            },
            "repositories": [
                {"place": part.shown, "problems": part.problems} for part in catalog.repository.parts
            ],
            "models": [_model(model) for model in shown],
            "next": f"/status.json?{urlencode(rest)}" if len(chosen) > len(shown) > 0 else None,
        }
    )


def _model(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "default_version": model.default.version if model.default else None,
        "policy": model.policy.model_dump(),
        "versions": [_version(version) for version in model.versions],
    }


def _inputs(spec: MlpSpec) -> list[dict[str, Any]]:
    """Inputs or outputs with names."""
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "shape": each.shape,
            "tables": [field.size for field in each.fields if field.size is not None],
        }
        for each in spec.inputs or ()
    ]


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
        "state": served.reported_state,
        "reason": served.reason,
        "variant": served.variant,
        "fallback": asdict(served.fallback) if served.fallback else None,
        "shape": spec.summary() if spec else None,
        "input_shape": spec.input_shape or (spec.in_features,) if spec else None,
        "inputs": _inputs(spec) if spec else None,
        "outputs": _outputs(spec) if spec else None,
        "dtype": spec.dtype if spec else None,
        "precision": served.precision if spec else None,
        "precision_error": served.precision_error.model_dump() if served.precision_error else None,
        "parameters": spec.parameters if spec else None,
        "description": spec.description if spec else None,
        "kernels": [asdict(info) for info in served.kernels],
        "shadow_tolerance": served.shadow.tolerance if served.shadow else None,
    }
