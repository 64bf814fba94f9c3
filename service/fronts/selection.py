# SPDX-License-Identifier: Apache-2.0
"""Which front serves: the native one where it was built, else the Python one, as the settings ask."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fused_mlp.service import _engine
from fused_mlp.service.fronts.ports import Ports
from fused_mlp.service.fronts.rpc import CheckAnswer, Rpc, Want
from fused_mlp.service.missing import explain_import
from fused_mlp.service.settings.settings import Settings, SettingsError

if TYPE_CHECKING:
    from fused_mlp.service import _front
    from fused_mlp.service.access.access import Access

log = logging.getLogger(__name__)

# A request's fields besides its rows; names and ids are short.
MESSAGE_SLACK_BYTES = 64 << 10
# gRPC's own default; clients expect at least this.
MIN_MESSAGE_BYTES = 4 << 20
WIDEST_ELEMENT_BYTES = 8


class Front(Protocol):
    name: str
    rest_port: int  # 0: none

    async def start(self) -> None:
        """Starts its threads. Connections are refused until it listens: clients try another server at once."""

    async def listen(self) -> None:
        """Accepts connections. Raises SettingsError."""

    async def stop(self, grace_s: float) -> None:
        """Sends clients elsewhere, lets calls that have begun end within the time, then cancels them."""

    async def allow_messages(self, max_bytes: int) -> None:
        """Accepts messages of at least this size. Before it listens: calls that have begun may be cancelled."""

    def publish_health(self, answers: Sequence[CheckAnswer]) -> None:
        """Sets the answers of Health/Check, for a front that answers it without the handler."""

    def retry_waiting(self) -> None:
        """Resolves waiting requests again after a change of the routes. From any thread."""

    def reload_tls(self) -> None:
        """Rereads the TLS files, for new connections. Raises in one line, and keeps the old ones."""

    def stats(self) -> _front.FrontStats | None:
        """Connections, calls and bytes, where the front counts them."""


# Each front is imported only where it is used: the native one exists only where it was built, and the Python one
# brings grpc, which a server with the native front does not need.
# ruff: noqa: PLC0415


def native_front_problem() -> str:
    """Why the native front cannot be used here, and what to do; empty if it can."""
    try:
        import fused_mlp.service._front  # `from package import module` would not say that the module is missing
    except ModuleNotFoundError:
        return "the native front was not built; install libnghttp2-dev, libssl-dev and zlib1g-dev, then build again"
    except ImportError as error:  # a shared library that it links is missing
        return explain_import(error, "the native front") or str(error)
    if not fused_mlp.service._front.nghttp2_bounds_continuations():
        return "this libnghttp2 takes CONTINUATION frames without end (CVE-2024-28182); update it"
    return ""


def make_front(
    settings: Settings,
    ports: Ports,
    control: Sequence[Rpc],
    widest: int,
    *,
    engine: _engine.Engine,
    router: _engine.Router,
    want: Want,
    access: Access | None = None,
) -> Front:
    """`control`: all RPCs except predictions. `widest`: inputs of the widest model. `want`: loads a version that a
    request waits for."""
    limit = max_message_bytes(settings, widest)
    problem = native_front_problem() if settings.front != "python" else "FUSED_MLP_FRONT=python"
    if not problem:
        from fused_mlp.service.fronts.native import NativeFront

        return NativeFront(
            settings,
            control,
            limit,
            ports.grpc,
            engine=engine,
            router=router,
            want=want,
            rest=_rest(settings, ports),
            callers=access.callers if access and access.keys_on else None,
        )
    _give_up_rest(settings, ports, f"it needs the native front: {problem}")
    if settings.front == "native":
        raise SettingsError(f"FUSED_MLP_FRONT=native: {problem}, or take python")
    if settings.tls_crl is not None:
        raise SettingsError(
            f"FUSED_MLP_TLS_CRL needs the native front, since grpc for Python checks none: {problem}"
        )
    if settings.front == "auto":
        log.warning("the Python front serves, at a tenth of the requests per second or less: %s", problem)
    from fused_mlp.service.fronts.python.predictor import Predictor
    from fused_mlp.service.fronts.python.server import PythonFront
    from fused_mlp.service.fronts.python.submission import Submitter

    predictor = Predictor(
        engine, router, Submitter(engine), want, access if access and access.keys_on else None
    )
    return PythonFront(settings, [*predictor.rpcs(), *control], limit, engine.now, ports.grpc)


def _rest(settings: Settings, ports: Ports) -> socket.socket | None:
    from fused_mlp.service import _front

    if missing := _front.rest_missing():
        _give_up_rest(settings, ports, missing)
    return None if missing else ports.rest


def _give_up_rest(settings: Settings, ports: Ports, why: str) -> None:
    """Raises SettingsError if the settings ask for REST."""
    if ports.rest is not None:
        ports.rest.close()
    if settings.rest_port == "off":
        return
    if "rest_port" in settings.model_fields_set:
        raise SettingsError(f"FUSED_MLP_REST_PORT={settings.rest_port}: {why}; or set it to off")
    log.info("no REST: %s", why)


def make_admin(
    settings: Settings, port: socket.socket | None, engine: _engine.Engine, rpcs: Sequence[Rpc]
) -> Front | None:
    """The admin service on its own port, if it has one."""
    if port is None:
        return None
    # The same front as the gRPC port's: both must refuse the same certificates.
    if settings.front != "python" and not native_front_problem():
        from fused_mlp.service.fronts.native import NativeFront

        return NativeFront(settings, rpcs, MIN_MESSAGE_BYTES, port)
    from fused_mlp.service.fronts.python.server import PythonFront

    return PythonFront(settings, rpcs, MIN_MESSAGE_BYTES, engine.now, port)


def max_message_bytes(settings: Settings, widest: int) -> int:
    """Room for the largest request that the row limit allows on the widest model."""
    if settings.limits.max_message_bytes is not None:
        return settings.limits.max_message_bytes
    rows = settings.limits.max_request_rows * widest * WIDEST_ELEMENT_BYTES
    return max(MIN_MESSAGE_BYTES, rows + MESSAGE_SLACK_BYTES)
