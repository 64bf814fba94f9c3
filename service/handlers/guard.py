# SPDX-License-Identifier: Apache-2.0
"""Checks the callers of every RPC that Python answers, by the rules of access/. Whether a call is allowed depends on
the rules and the names in it only, never on what is served: a refusal tells nothing of models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Any

from fused_mlp.service._engine import Action, Refused, grpc_code, quote_name
from fused_mlp.service.access.access import Access
from fused_mlp.service.errors import (
    CODES,
    Code,
    EngineRefused,
    PermissionDenied,
    ServiceError,
    Unauthenticated,
)
from fused_mlp.service.fronts.rpc import Call, Rpc
from fused_mlp.service.handlers.audited import Refusals, audited

CHECK_EVERY_S = 1.0  # of a stream; checking again takes microseconds
_END = object()
_MODEL_FIELDS = ("model", "model_name", "repository_name", "name", "service")


class Guard:
    """`access`: None allows everything to every caller."""

    def __init__(self, access: Access | None = None) -> None:
        self._access = access
        self.refused: Counter[str] = Counter(
            {CODES[kind].name: 0 for kind in (Unauthenticated, PermissionDenied)}
        )
        self._refusals = Refusals()

    def protect(self, rpc: Rpc, action: Action, open_names: Collection[str] = ()) -> Rpc:
        """`open_names`: what every caller may ask for."""
        if action is not Action.admin and not self._asks(action):
            return rpc

        def check_and_handle(request: Any, call: Call) -> Any:
            model = next((name for field in _MODEL_FIELDS if (name := getattr(request, field, ""))), "")
            if not self._asks(action) or model in open_names:
                return rpc.handle(request, call)
            self._check(call, action, model)
            self._take_quota(call, action)
            if rpc.kind == "unary_unary":
                return rpc.handle(request, call)
            return self._while_allowed(rpc.handle(request, call), call, action, model)

        recorded = audited(replace(rpc, handle=check_and_handle), self._refusals)

        def handle(request: Any, call: Call) -> Any:
            return recorded.handle(request, self._identified(call))

        return replace(rpc, handle=handle)

    def sees(self, call: Call) -> Callable[[str], bool]:
        """Which models the caller may see; for the name "": whether it may see all."""
        if not self._asks(Action.describe):
            return lambda _: True
        caller = self._identified(call).caller
        return lambda model: caller is not None and caller.allows(Action.describe, model)

    def _asks(self, action: Action) -> bool:
        return self._access is not None and self._access.asks(action)

    async def _while_allowed(
        self, responses: AsyncGenerator[Any], call: Call, action: Action, model: str
    ) -> AsyncIterator[Any]:
        """Ends a stream when its caller is revoked or expires, also while it has nothing to send."""
        following: asyncio.Future[Any] = asyncio.ensure_future(anext(responses, _END))
        try:
            while True:
                await asyncio.wait([following], timeout=CHECK_EVERY_S)
                if following.done() and following.result() is _END:
                    return
                self._check(self._identified(replace(call, identity=None)), action, model)
                if following.done():
                    yield following.result()
                    following = asyncio.ensure_future(anext(responses, _END))
        finally:
            following.cancel()
            await asyncio.wait([following])
            await responses.aclose()

    def _identified(self, call: Call) -> Call:
        if self._access is None or call.identity is not None:
            return call
        identity = self._access.identify(call.metadata, call.certificate_names, call.peer_address)
        return replace(call, identity=identity)

    def _check(self, call: Call, action: Action, model: str) -> None:
        """Lists of models are for every known caller: they hold what it may see."""
        caller = call.caller
        if caller is None:
            raise self._counted(_unknown(call.identity), action)
        if not caller.allows(action, model) and (model or action is not Action.describe):
            caller.count_denied()
            what = f" model {quote_name(model)}" if model else ""
            raise self._counted(PermissionDenied(f"this caller may not {action.name}{what}"), action)

    def _take_quota(self, call: Call, action: Action) -> None:
        caller = call.caller
        if caller is None or action is Action.admin:
            return
        try:
            caller.admit(0)
        except Refused as refused:
            raise EngineRefused(grpc_code(refused.status), str(refused), refused.retry_after_ms) from None
        caller.release()

    def _counted(self, error: ServiceError, action: Action) -> ServiceError:
        if action is Action.admin and type(error) in CODES:
            self.refused[CODES[type(error)].name] += 1
        return error


def _unknown(identity: Any) -> ServiceError:
    kinds = {Code.UNAUTHENTICATED: Unauthenticated, Code.PERMISSION_DENIED: PermissionDenied}
    if kind := kinds.get(Code(identity.code)):
        return kind(identity.text)
    return EngineRefused(identity.code, identity.text, identity.retry_after_ms)
