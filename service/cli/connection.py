"""The options of every command that talks to a server, and the client they make. Errors of the client end the
command in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from service.cli.failure import fail
from service.client import Client, PredictError, RetryPolicy, Tls


def _option(help_text: str, metavar: str, env: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(
        *names, help=help_text, metavar=metavar, envvar=env, rich_help_panel="Connection", **more
    )


def _options(
    retry: RetryPolicy | None = None,
    *,
    target: Annotated[str, _option("The server.", "HOST:PORT", "FUSED_MLP_TARGET")] = "127.0.0.1:8001",
    timeout: Annotated[float, _option("Give up after this long.", "SECONDS", min=0)] = 10.0,
    tls: Annotated[bool, _option("Connect with TLS; implied by the next.", "", None, "--tls")] = False,
    tls_ca: Annotated[
        Path | None, _option("Trust these roots, not the system's.", "PEM", "FUSED_MLP_TARGET_CA")
    ] = None,
    tls_name: Annotated[
        str | None, _option("Name in the server's certificate.", "NAME", "FUSED_MLP_TARGET_NAME")
    ] = None,
    tls_cert: Annotated[
        Path | None, _option("Certificate of this client.", "PEM", "FUSED_MLP_TARGET_CERT")
    ] = None,
    tls_key: Annotated[Path | None, _option("Its key.", "PEM", "FUSED_MLP_TARGET_KEY")] = None,
) -> Client:
    secure = tls or tls_ca or tls_name or tls_cert or tls_key
    credentials = Tls(root_ca=tls_ca, cert=tls_cert, key=tls_key, server_name=tls_name) if secure else None
    return Client(target, timeout_s=timeout, retry=retry, tls=credentials)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` an open client as its first argument, and the command line the options to make it."""

    def run(options: dict[str, Any], given: dict[str, Any]) -> None:
        with _connect(**options) as client:
            command(client, **given)

    return _with_options(command, run, _option_parameters())


def connectable(command: Callable[..., None]) -> Callable[..., None]:
    """As `connected`, for a command that finds out first whom to call: its first argument makes a client for a
    target (and a RetryPolicy), and `target` is an option of its own."""

    def run(options: dict[str, Any], given: dict[str, Any]) -> None:
        command(partial(_connect, **options), **given)

    parameters = _option_parameters()
    del parameters["target"]
    return _with_options(command, run, parameters)


def _connect(retry: RetryPolicy | None = None, **options: Any) -> Client:
    try:
        return _options(retry, **options)
    except (OSError, ValueError) as error:  # a file of TLS that cannot be read, a certificate without key
        fail(str(error))


def _option_parameters() -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(_options, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _with_options(
    command: Callable[..., None],
    run_with: Callable[[dict[str, Any], dict[str, Any]], None],
    options: dict[str, inspect.Parameter],
) -> Callable[..., None]:
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            run_with({name: given.pop(name) for name in options}, given)
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
