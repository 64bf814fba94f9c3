# SPDX-License-Identifier: Apache-2.0
"""The name, attributes and status of a server span, as the semantic conventions for RPC and for HTTP have them."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.trace import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from fused_mlp.service import _engine
from fused_mlp.service.errors import Code

# Codes for which the conventions of RPC spans blame the server.
_SERVER_FAILED = {
    Code.UNKNOWN,
    Code.DEADLINE_EXCEEDED,
    Code.UNIMPLEMENTED,
    Code.INTERNAL,
    Code.UNAVAILABLE,
    Code.DATA_LOSS,
}
_VERB = "POST"
_VERSIONED = "/v2/models/{model}/versions/{version}/infer"


@dataclass(frozen=True)
class Described:
    name: str
    attributes: dict[str, AttributeValue]
    status: Status


@dataclass(frozen=True)
class Protocols:
    """The server's address."""

    address: str
    grpc_port: int
    rest_port: int
    tls: bool

    def describe(self, request: _engine.RequestSpan) -> Described:
        code = Code(request.code)
        if request.rpc.startswith(f"{_VERB} "):
            return self._rest(request, code)
        failed = code in _SERVER_FAILED
        return Described(
            request.rpc,
            {
                "rpc.system.name": "grpc",
                "rpc.method": request.rpc,
                "rpc.response.status_code": code.name,
                "server.address": self.address,
                "server.port": self.grpc_port,
                **({"error.type": code.name} if failed else {}),
            },
            Status(StatusCode.ERROR, code.name) if failed else Status(),
        )

    def _rest(self, request: _engine.RequestSpan, code: Code) -> Described:
        # REST is served only by the native front, which has this module.
        from fused_mlp.service import _front  # noqa: PLC0415

        path = request.path.partition("?")[0]
        route = _VERSIONED if path.count("/") == _VERSIONED.count("/") else request.rpc.partition(" ")[2]
        status = _front.http_status_of(code)
        failed = status >= 500
        return Described(
            f"{_VERB} {route}",
            {
                "http.request.method": _VERB,
                "http.route": route,
                "http.response.status_code": status,
                "url.path": path,
                "url.scheme": "https" if self.tls else "http",
                "server.address": self.address,
                "server.port": self.rest_port,
                **({"error.type": str(status)} if failed else {}),
            },
            Status(StatusCode.ERROR) if failed else Status(),
        )
