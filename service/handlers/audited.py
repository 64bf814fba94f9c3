# SPDX-License-Identifier: Apache-2.0
"""Records administrative RPCs: caller, action and result. Other RPCs are recorded only when they are refused."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from google.protobuf import text_format

from fused_mlp.service.access import audit
from fused_mlp.service.access.access import shown_key
from fused_mlp.service.errors import EngineRefused, PermissionDenied, Unauthenticated, answer
from fused_mlp.service.fronts.rpc import Call, Rpc

ANONYMOUS = "anonymous"


def caller_name(call: Call) -> str:
    """The name of a caller that is listed; else a name in a verified certificate, or the start of a key's SHA-256."""
    if call.caller is not None:
        return call.caller.name
    if call.certificate_names:
        return call.certificate_names[0]
    if key := shown_key(call.metadata):
        return f"token sha256:{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    return ANONYMOUS


ACTIONS = {
    "LoadModel": "load",
    "UnloadModel": "unload",
    "PinVersion": "pin",
    "RollBack": "roll_back",
    "SetPolicy": "set_policy",
    "RepositoryModelLoad": "load",
    "RepositoryModelUnload": "unload",
}
_NAMES = ("model", "model_name", "repository_name", "version")  # fields with a place of their own
MAX_SHOWN_BYTES = 4096  # of a request: printing megabytes would hold up the event loop
REFUSALS_BURST = 20
REFUSALS_PER_S = 1.0


class Refusals:
    """Limits how often refusals are recorded: any caller can cause any number of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credit, self._credited_at = float(REFUSALS_BURST), clock()
        self._left_out = 0

    def admit(self) -> str | None:
        """The text to add to a line, which may be recorded now; None: no line may."""
        now = self._clock()
        self._credit = min(REFUSALS_BURST, self._credit + (now - self._credited_at) * REFUSALS_PER_S)
        self._credited_at = now
        if self._credit < 1:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        self._credit -= 1
        return f" ({left_out} refusals before it are not on record)" if left_out else ""


def audited(rpc: Rpc, refusals: Refusals) -> Rpc:
    """`rpc.handle` checks the caller first. The answer is sent after the line was written."""
    method = rpc.path.rpartition("/")[2]

    def write(request: Any, call: Call, error: BaseException | None = None, response: Any = None) -> None:
        left_out: str | None = ""
        too_many_wrong_keys = call.caller is None and isinstance(error, EngineRefused)
        if too_many_wrong_keys or isinstance(error, (Unauthenticated, PermissionDenied)):
            left_out = refusals.admit()
        elif method not in ACTIONS:
            return
        if left_out is None:
            return
        result, text = _result(error, call.request_id)
        pinned = response.model if response and method in ("PinVersion", "RollBack") else None
        audit.record(
            _action(method, request),
            who=caller_name(call),
            address=call.peer_address,
            model=next((name for field in _NAMES[:3] if (name := getattr(request, field, ""))), ""),
            version=getattr(request, "version", 0) or getattr(pinned, "default_version", 0),
            arguments=_arguments(request),
            result=result,
            error=(text or getattr(response, "not_kept", "")) + left_out,
            request_id=call.request_id,
        )

    async def unary(request: Any, call: Call) -> Any:
        response, error = None, None
        try:
            response = await rpc.handle(request, call)
            return response
        except BaseException as raised:
            error = raised
            raise
        finally:
            if method in ACTIONS or error is not None:
                await asyncio.to_thread(write, request, call, error, response)

    def stream(request: Any, call: Call) -> Any:
        try:
            return rpc.handle(request, call)
        except Exception as error:
            write(request, call, error)
            raise

    return replace(rpc, handle=unary if rpc.kind == "unary_unary" else stream)


def _result(error: BaseException | None, request_id: str) -> tuple[str, str]:
    """The name of a gRPC code, and a text."""
    if error is None:
        return "OK", ""
    if isinstance(error, Exception):
        response = answer(error, request_id)
        return response.code.name, response.text
    return "CANCELLED", "the caller did not wait for the end"


def _action(method: str, request: Any) -> str:
    if method != "SetPolicy":
        return ACTIONS.get(method, method)
    if request.unset:
        return "unset_policy"
    if request.change.HasField("canary"):
        return "start_canary" if request.change.canary.to else "stop_canary"
    return "set_policy"


def _arguments(request: Any) -> str:
    """The fields that have no place of their own, in one line."""
    if request.ByteSize() > MAX_SHOWN_BYTES:
        return f"{request.ByteSize()} bytes"
    rest = type(request)()
    rest.CopyFrom(request)
    for name in _NAMES:
        if name in rest.DESCRIPTOR.fields_by_name:
            rest.ClearField(name)
    return str(text_format.MessageToString(rest, as_one_line=True))
