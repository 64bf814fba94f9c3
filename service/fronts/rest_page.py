# SPDX-License-Identifier: Apache-2.0
"""The REST port's own documentation: an OpenAPI description, and a page without external resources."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.metadata import version as package_version
from typing import Any

_MODEL = "/v2/models/{model}"
_VERSION = _MODEL + "/versions/{version}"
_EXAMPLE = """\
curl localhost:8000/v2/models/digits/infer -d '{
  "inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": ['$(seq -s , 64)']}]
}'"""
# Headers of predictions: name, meaning.
_HEADERS = [
    ("X-Request-Timeout-Ms", "The deadline. A request that misses it is answered with 504."),
    ("X-Ab-Key", "Requests with the same key get the same arm of a split."),
    ("X-Fused-Mlp-Arm", "The arm that answers, as in 3/fused, stable or unfused (FUSED_MLP_ALLOW_OVERRIDE)."),
    (
        "Inference-Header-Content-Length",
        "Bytes of JSON in front of binary tensors; 0: the body is the tensor.",
    ),
    ("Content-Encoding", "gzip or deflate: how the body is packed."),
]
# Verb, path, summary, answer.
_PATHS = [
    ("post", _MODEL + "/infer", "Predict: rows in, outputs out.", "InferenceResponse"),
    ("post", _VERSION + "/infer", "The same, of one version.", "InferenceResponse"),
    ("get", "/v2", "Name, version and extensions of the server.", "ServerMetadata"),
    ("get", "/v2/health/live", "200: the server answers.", "Live"),
    ("get", "/v2/health/ready", "200: it can answer predictions; else 503.", "Ready"),
    ("get", _MODEL, "Versions, inputs and outputs of a model.", "ModelMetadata"),
    ("get", _VERSION, "The same, of one version.", "ModelMetadata"),
    ("get", _MODEL + "/ready", "200: the model can answer; else 503.", "Ready"),
    ("get", _VERSION + "/ready", "The same, of one version.", "Ready"),
    ("get", _MODEL + "/config", "How it is served.", "ModelConfig"),
    ("get", _MODEL + "/stats", "Requests, rows and times since the start.", "ModelStatistics"),
    ("get", "/v2/models/stats", "The same, of all models.", "ModelStatistics"),
    ("post", "/v2/repository/index", "All models and versions and their states.", "RepositoryIndex"),
    ("post", "/v2/repository/models/{model}/load", "Load it again (FUSED_MLP_ALLOW_LOAD).", "Empty"),
    ("post", "/v2/repository/models/{model}/unload", "Stop serving it (FUSED_MLP_ALLOW_LOAD).", "Empty"),
]
_DATATYPES = [
    *("FP32", "FP64", "FP16", "BF16", "BOOL", "BYTES"),
    *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
]
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "datatype": {"type": "string", "enum": _DATATYPES},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
        "data": {
            "type": "array",
            "items": {},
            "description": "flat, or nested by rows; not of FP16 and BF16",
        },
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "variant": {"type": "string", "enum": ["fused", "unfused"]},
                "arm": {"type": "string"},
                "binary_data_output": {"type": "boolean"},
            },
        },
        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
                },
            },
        },
    },
}


@cache
def openapi() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for verb, path, summary, answer in _PATHS:
        names = [name for name in ("model", "version") if f"{{{name}}}" in path]
        operation: dict[str, Any] = {
            "summary": summary,
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            "responses": {
                "200": _json("answer", {"$ref": f"#/components/schemas/{answer}"}),
                "default": _json("what is wrong", {"$ref": "#/components/schemas/Error"}),
            },
        }
        if path.endswith("/infer"):
            operation["requestBody"] = _json("one tensor", _REQUEST) | {"required": True}
            operation["requestBody"]["content"]["application/octet-stream"] = {
                "schema": {"type": "string", "format": "binary"}
            }
            operation["parameters"] += [
                {"name": name, "in": "header", "description": meaning, "schema": {"type": "string"}}
                for name, meaning in _HEADERS
            ]
        paths.setdefault(path, {})[verb] = operation
    schemas: dict[str, Any] = {answer: {"type": "object"} for _, _, _, answer in _PATHS}
    schemas["RepositoryIndex"] = {"type": "array", "items": {"type": "object"}}
    schemas["Error"] = {"type": "object", "properties": {"error": {"type": "string"}}}
    schemas["InferenceResponse"] = {
        "type": "object",
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": _TENSOR},
        },
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "fused-mlp: Open Inference Protocol", "version": package_version("fused-mlp")},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


@cache
def page() -> bytes:
    paths = "".join(
        f"<tr><td><code>{verb.upper()}</code><td><code>{escape(path)}</code><td>{escape(summary)}"
        for verb, path, summary, _ in _PATHS
    )
    headers = "".join(f"<tr><td><code>{name}</code><td>{escape(meaning)}" for name, meaning in _HEADERS)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>fused-mlp: REST</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root{{color-scheme:light dark}}
body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem}}
h1{{font-size:1.5rem;margin:0}} h2{{font-size:1.1rem;margin:2rem 0 .5rem}}
code,pre{{font:13px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}}
pre{{background:#8881;border-radius:6px;padding:.8rem 1rem;white-space:pre-wrap}}
table{{border-collapse:collapse;width:100%}}
td{{border-top:1px solid #8884;padding:.35rem 1rem .35rem 0;vertical-align:top}}
@media(max-width:40rem){{tr{{border-top:1px solid #8884;display:block;padding:.35rem 0}}
td{{border:0;display:inline-block;padding:0 .6rem 0 0}}td:last-child{{display:block}}}}
</style>
<h1>Open Inference Protocol over HTTP</h1>
<p>fused-mlp {escape(package_version("fused-mlp"))}. For tools: <a href="/openapi.json">openapi.json</a>.</p>
<h2>A prediction</h2>
<pre>{escape(_EXAMPLE)}</pre>
<p>Tensors are JSON numbers, or bytes behind the JSON. An error has a 4xx or 5xx status and the body
<code>{{"error": "..."}}</code>.</p>
<h2>Paths</h2>
<table>{paths}</table>
<h2>Headers of predictions</h2>
<table>{headers}</table></html>
""".encode()
