# SPDX-License-Identifier: Apache-2.0
"""The REST port's paths beside predictions: each is a call of the same handler as in gRPC, with its answer as JSON.
Knows nothing of HTTP but paths, verbs and statuses; the native front does the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fused_mlp.service.errors import InvalidInput, UnknownPath
from fused_mlp.service.fronts.rest_page import openapi, page
from fused_mlp.service.fronts.rpc import Call, Rpc

_SERVICE = "/inference.GRPCInferenceService/"
_MODEL = r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?"


@dataclass(frozen=True)
class Endpoint:
    """field: of the response, which is sent in its place; truth: of the response, whose value is the HTTP status."""

    verb: str
    pattern: str
    method: str
    field: str = ""
    truth: str = ""


ENDPOINTS = [
    Endpoint("GET", r"/v2/?", "ServerMetadata"),
    Endpoint("GET", r"/v2/health/live", "ServerLive", truth="live"),
    Endpoint("GET", r"/v2/health/ready", "ServerReady", truth="ready"),
    Endpoint("GET", r"/v2/models/stats", "ModelStatistics"),
    Endpoint("GET", _MODEL, "ModelMetadata"),
    Endpoint("GET", _MODEL + "/ready", "ModelReady", truth="ready"),
    Endpoint("GET", _MODEL + "/config", "ModelConfig", field="config"),
    Endpoint("GET", _MODEL + "/stats", "ModelStatistics"),
    Endpoint("POST", r"/v2/repository/index", "RepositoryIndex", field="models"),
    Endpoint("POST", r"/v2/repository/models/(?P<model_name>[^/]+)/load", "RepositoryModelLoad"),
    Endpoint("POST", r"/v2/repository/models/(?P<model_name>[^/]+)/unload", "RepositoryModelUnload"),
]


class Rest:
    def __init__(self, rpcs: Sequence[Rpc]) -> None:
        self._rpcs = {rpc.path: rpc for rpc in rpcs}

    def rpc(self, target: str) -> Rpc:
        """The RPC that answers a request such as "GET /v2/models/digits?x=1", also one for an unknown path."""

        async def handle(body: bytes, call: Call) -> bytes:
            return await self._answer(target, body, call)

        return Rpc(target[:256], "unary_unary", decode=bytes, encode=bytes, handle=handle)

    async def _answer(self, target: str, body: bytes, call: Call) -> bytes:
        verb, _, path = target.partition(" ")
        path = path.partition("?")[0]
        verb = "GET" if verb == "HEAD" else verb
        if verb == "GET" and path in ("/docs", "/openapi.json"):
            call.trailers.append(("content-type", "text/html" if path == "/docs" else "application/json"))
            return page() if path == "/docs" else json.dumps(openapi()).encode()
        matches = [(e, match) for e in ENDPOINTS if (match := re.fullmatch(e.pattern, path))]
        for endpoint, match in matches:
            if endpoint.verb == verb and _SERVICE + endpoint.method in self._rpcs:
                return await self._call(endpoint, match.groupdict(), body, call)
        if matches:
            call.trailers.extend([(":status", "405"), ("allow", matches[0][0].verb)])
            return _dump({"error": f"expected method {matches[0][0].verb}, got {verb}"})
        raise UnknownPath(f"unknown path {path[:256]}; GET /docs lists them")

    async def _call(
        self, endpoint: Endpoint, names: Mapping[str, str | None], body: bytes, call: Call
    ) -> bytes:
        rpc = self._rpcs[_SERVICE + endpoint.method]
        request = rpc.decode(b"")
        for field, value in names.items():
            if value:
                setattr(request, field, _unquoted(value))
        if endpoint.verb == "POST":
            _fill(request, body)
        response = await rpc.handle(request, call)
        if endpoint.truth:
            good = getattr(response, endpoint.truth)
            if not good:
                call.trailers.append((":status", "503"))
            return _dump({endpoint.truth: good})
        answer = as_json(response)
        return _dump(answer[endpoint.field] if endpoint.field else answer)


def _unquoted(text: str) -> str:
    """As the native front reads the paths of predictions; unquote alone leaves a % that it cannot read."""
    try:
        if not re.search("%(?![0-9A-Fa-f]{2})", text):
            return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise InvalidInput("path: expected UTF-8, with two hexadecimal digits after each %")


def _fill(request: Any, body: bytes) -> None:
    """The fields of a JSON object, of those that the request has: {"ready": true}, {"parameters": {...}}."""
    try:
        values = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidInput("body: expected a JSON object or nothing")
    if "ready" in values and hasattr(request, "ready"):
        if not isinstance(values["ready"], bool):
            raise InvalidInput("ready: expected true or false")
        request.ready = values["ready"]
    parameters = values.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidInput("parameters: expected an object")
    if hasattr(request, "parameters"):
        try:
            for name, value in parameters.items():
                request.parameters[name].string_param = str(value)
        except UnicodeEncodeError:
            raise InvalidInput("parameters: expected Unicode, got half of a surrogate pair") from None


def as_json(message: Any) -> dict[str, Any]:
    """By the names of the .proto; numbers of 64 bits are numbers, as Triton sends them, and enums names."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    if isinstance(value, MutableMapping):
        of_values = field.message_type.fields_by_name["value"]
        return {str(key): _single(of_values, each) for key, each in value.items()}
    if isinstance(value, MutableSequence):
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return as_json(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
