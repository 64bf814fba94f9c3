# SPDX-License-Identifier: Apache-2.0
"""Which front serves: the native one where it was built, else the Python one, as the settings ask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fused_mlp.service import _engine
from fused_mlp.service.fronts.listen import Listen
from fused_mlp.service.fronts.rpc import CheckAnswer, Rpc, Want
from fused_mlp.service.missing import explain_import
from fused_mlp.service.settings.settings import Settings, SettingsError

if TYPE_CHECKING:
    from fused_mlp.service import _front

log = logging.getLogger(__name__)

# A request's fields besides its rows; names and ids are short.
MESSAGE_SLACK_BYTES = 64 << 10
# gRPC's own default; clients expect at least this.
LEAST_MESSAGE_BYTES = 4 << 20
WIDEST_ELEMENT_BYTES = 8


class Front(Protocol):
    name: str

    async def start(self) -> int:
        """Listen; returns the port."""

    async def stop(self, grace_s: float) -> None:
        """Send clients elsewhere, let calls that have begun end within the time, then cancel them."""

    async def allow_messages(self, most_bytes: int) -> None:
        """Of this size at least. Only while nothing is served: calls that have begun may be cancelled."""

    def publish_health(self, answers: Sequence[CheckAnswer]) -> None:
        """What Health/Check answers from now on, for a front that answers it without the handler."""

    def retry_waiting(self) -> None:
        """The routes have changed: look again for models that requests wait for. From any thread."""

    @property
    def rest_port(self) -> int:
        """0: there is none."""

    def reload_tls(self) -> None:
        """Read the TLS files again, for new connections. Raises in one line, and keeps what it had."""

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
    engine: _engine.Engine,
    router: _engine.Router,
    control: Sequence[Rpc],
    widest: int,
    *,
    want: Want,
) -> Front:
    """`control`: all RPCs but the predictions. `widest`: the most inputs that any model has. `want`: has a version
    loaded that a request waits for."""
    limit = max_message_bytes(settings, widest)
    problem = native_front_problem() if settings.front != "python" else "FUSED_MLP_FRONT=python"
    if not problem:
        from fused_mlp.service.fronts.native import NativeFront

        port = _rest_port(settings)
        return NativeFront(settings, control, limit, engine=engine, router=router, want=want, rest_port=port)
    _no_rest(settings, f"it needs the native front: {problem}")
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

    predictor = Predictor(engine, router, Submitter(engine), want)
    return PythonFront(settings, [*predictor.rpcs(), *control], limit, engine.now)


def _rest_port(settings: Settings) -> int:
    """-1: none."""
    from fused_mlp.service import _front

    if settings.rest_port == "off":
        return -1
    if missing := _front.rest_missing():
        _no_rest(settings, missing)
        return -1
    return settings.rest_port


def _no_rest(settings: Settings, why: str) -> None:
    """Raises SettingsError where REST was asked for."""
    if settings.rest_port == "off":
        return
    if "rest_port" in settings.model_fields_set:
        raise SettingsError(f"FUSED_MLP_REST_PORT={settings.rest_port}: {why}; or set it to off")
    log.info("no REST: %s", why)


def make_admin(settings: Settings, engine: _engine.Engine, rpcs: Sequence[Rpc]) -> Front | None:
    """The admin service on its own port, if it has one."""
    if settings.admin_port == 0:
        return None
    listen = Listen(settings.admin_host, settings.admin_port, "admin", "FUSED_MLP_ADMIN_PORT")
    # The same front as the gRPC port's: both must refuse the same certificates.
    if settings.front != "python" and not native_front_problem():
        from fused_mlp.service.fronts.native import NativeFront

        return NativeFront(settings, rpcs, LEAST_MESSAGE_BYTES, listen=listen)
    from fused_mlp.service.fronts.python.server import PythonFront

    return PythonFront(settings, rpcs, LEAST_MESSAGE_BYTES, engine.now, listen)


def max_message_bytes(settings: Settings, widest: int) -> int:
    """Room for the largest request that the row limit allows on the widest model."""
    if settings.limits.max_message_bytes is not None:
        return settings.limits.max_message_bytes
    rows = settings.limits.max_request_rows * widest * WIDEST_ELEMENT_BYTES
    return max(LEAST_MESSAGE_BYTES, rows + MESSAGE_SLACK_BYTES)
