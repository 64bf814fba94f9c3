"""The options of every command that talks to a server, and the client they make. Errors of the client end the
command in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from service.cli.failure import fail
from service.client import Client, PredictError, Tls

_PANEL = "Connection"


def _options(
    *,
    target: Annotated[
        str,
        typer.Option(
            envvar="FUSED_MLP_TARGET", help="The server.", metavar="HOST:PORT", rich_help_panel=_PANEL
        ),
    ] = "127.0.0.1:8001",
    timeout: Annotated[
        float, typer.Option(help="Give up after this long.", metavar="SECONDS", min=0, rich_help_panel=_PANEL)
    ] = 10.0,
    tls: Annotated[
        bool, typer.Option("--tls", help="Connect with TLS; implied by the next.", rich_help_panel=_PANEL)
    ] = False,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Trust these roots, not the system's.", rich_help_panel=_PANEL)
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate of this client.", rich_help_panel=_PANEL)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.", rich_help_panel=_PANEL)] = None,
) -> Client:
    secure = tls or tls_ca or tls_cert or tls_key
    return Client(
        target, timeout_s=timeout, tls=Tls(root_ca=tls_ca, cert=tls_cert, key=tls_key) if secure else None
    )


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` an open client as its first argument, and the command line the options to make it."""
    options = inspect.signature(_options, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            client = _options(**{name: given.pop(name) for name in options})
        except (OSError, ValueError) as error:  # a file of TLS that cannot be read, a certificate without key
            fail(str(error))
        with client:
            try:
                command(client, **given)
            except PredictError as error:
                fail(explain(error))

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature([*keyword_only, *options.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def explain(error: PredictError) -> str:
    if error.unreachable:
        return f"{error.message}; start a server with `fused-mlp serve`, or name another with --target"
    if error.code == grpc.StatusCode.NOT_FOUND:
        return f"{error.message}; `fused-mlp models --target {error.target}` lists what is"
    if error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{error.target} did not answer in time ({error.message}); --timeout gives it longer"
    return str(error)
