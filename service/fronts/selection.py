"""Which front serves: the native one where it was built, else the Python one, as the settings ask."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from fused_mlp.service import _engine
from fused_mlp.service.handlers import Control, admin, control_rpcs
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
        """Refuse new calls, let those under way end within the time, then cancel them."""

    def stats(self) -> _front.FrontStats | None:
        """Connections, calls and bytes, where the front counts them."""


# Each front is imported only where it is used: the native one exists only where it was built, and the Python one
# brings grpc, which a server with the native front does not need.
# ruff: noqa: PLC0415


def native_front_problem() -> str:
    """Why the native front cannot be used here, and what to do; empty if it can."""
    try:
        from fused_mlp.service import _front  # noqa: F401
    except ModuleNotFoundError:
        return "the native front was not built; install libnghttp2-dev, libssl-dev and zlib1g-dev, then build again"
    except ImportError as error:  # a shared library that it links is missing
        return explain_import(error, "the native front") or str(error)
    return ""


def make_front(
    settings: Settings, engine: _engine.Engine, router: _engine.Router, control: Control, widest: int
) -> Front:
    """`widest`: the most inputs that any model has."""
    limit = max_message_bytes(settings, widest)
    if settings.front != "python":
        problem = native_front_problem()
        if not problem:
            from fused_mlp.service.fronts.native import NativeFront

            return NativeFront(settings, control_rpcs(control), limit, engine, router)
        if settings.front == "native":
            raise SettingsError(f"FUSED_MLP_FRONT=native: {problem}, or take python")
        log.warning("the Python front serves, at a tenth of the requests per second or less: %s", problem)
    from fused_mlp.service.fronts.python.predictor import Predictor
    from fused_mlp.service.fronts.python.server import PythonFront
    from fused_mlp.service.fronts.python.submission import Submitter

    predictor = Predictor(engine, router, Submitter(engine))
    rpcs = [*predictor.rpcs(), *control_rpcs(control)]
    return PythonFront(settings, rpcs, limit, engine.now)


def make_admin(settings: Settings, engine: _engine.Engine, control: Control) -> Front | None:
    """The admin service on its own port, if it has one: always on the Python front, because calls are rare."""
    if settings.admin_port == 0:
        return None
    from fused_mlp.service.fronts.python.server import Listen, PythonFront

    if not _is_loopback(settings.admin_host) and settings.tls_client_ca is None:
        log.warning(
            "the admin port listens on %s, where other machines can reach it, and asks for no client certificate",
            settings.admin_host,
        )
    listen = Listen(settings.admin_host, settings.admin_port, "admin", "FUSED_MLP_ADMIN_PORT or _HOST")
    return PythonFront(settings, admin.rpcs(control.catalog), LEAST_MESSAGE_BYTES, engine.now, listen)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def max_message_bytes(settings: Settings, widest: int) -> int:
    """Room for the largest request that the row limit allows on the widest model."""
    if settings.limits.max_message_bytes is not None:
        return settings.limits.max_message_bytes
    rows = settings.max_request_rows * widest * WIDEST_ELEMENT_BYTES
    return max(LEAST_MESSAGE_BYTES, rows + MESSAGE_SLACK_BYTES)
