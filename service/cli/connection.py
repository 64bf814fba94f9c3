# SPDX-License-Identifier: Apache-2.0
"""The options of every command that talks to a server, and the client made from them. An error of the client ends
the command with one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from fused_mlp.service.cli.failure import explain, fail
from fused_mlp.service.cli.options import option
from fused_mlp.service.client import Client, PredictError, RetryPolicy, Tls
from fused_mlp.service.client.admin import CHANGE_TIMEOUT_S, AdminClient
from fused_mlp.service.client.channel import caller_metadata

_option = partial(option, panel="Connection")


def _options(
    *,
    target: Annotated[
        str, _option("Address of the server.", "HOST:PORT", envvar="FUSED_MLP_TARGET")
    ] = "127.0.0.1:8001",
    timeout: Annotated[float, _option("How long to wait for an answer.", "SECONDS", min=0)] = 10.0,
    tls: Annotated[bool, _option("Connect with TLS. The next options imply it.", "", "--tls")] = False,
    tls_ca: Annotated[
        Path | None,
        _option("Root certificates to trust, in place of the system's.", "PEM", envvar="FUSED_MLP_TARGET_CA"),
    ] = None,
    tls_name: Annotated[
        str | None,
        _option(
            "The name in the server's certificate, if it is not the host's.",
            "NAME",
            envvar="FUSED_MLP_TARGET_NAME",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, _option("Certificate of this client.", "PEM", envvar="FUSED_MLP_TARGET_CERT")
    ] = None,
    tls_key: Annotated[
        Path | None, _option("Key of that certificate.", "PEM", envvar="FUSED_MLP_TARGET_KEY")
    ] = None,
    token_file: Annotated[
        Path | None,
        _option(
            "File with the key or token that tells the server who is calling. FUSED_MLP_API_KEY can hold the key "
            "itself.",
            "FILE",
            envvar="FUSED_MLP_TARGET_TOKEN_FILE",
        ),
    ] = None,
) -> dict[str, Any]:
    secure = tls or tls_ca or tls_name or tls_cert or tls_key
    credentials = Tls(root_ca=tls_ca, cert=tls_cert, key=tls_key, server_name=tls_name) if secure else None
    return {
        "target": target,
        "timeout_s": timeout,
        "tls": credentials,
        "metadata": caller_metadata(token_file),
    }


_ADMIN_TARGET = inspect.Parameter(
    "target",
    inspect.Parameter.KEYWORD_ONLY,
    default="127.0.0.1:8003",
    annotation=Annotated[
        str, _option("Address of the server's admin port.", "HOST:PORT", envvar="FUSED_MLP_TARGET_ADMIN")
    ],
)


def connected_to_admin(command: Callable[..., None]) -> Callable[..., None]:
    """As `connected`, with a client of the server's admin port."""
    timeout = inspect.signature(_options, eval_str=True).parameters["timeout"]
    return connected(
        command, AdminClient, target=_ADMIN_TARGET, timeout=timeout.replace(default=CHANGE_TIMEOUT_S)
    )


_OPTIONAL_TARGET = inspect.Parameter(
    "target",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        str | None,
        _option(
            "A server that runs already. If not given, one is started for this.",
            "HOST:PORT",
            envvar="FUSED_MLP_TARGET",
        ),
    ],
)


@dataclass(frozen=True)
class Connector:
    """The options of a connection that is opened later; `target` is None when none was named."""

    target: str | None
    timeout_s: float
    tls: Tls | None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def open(self, target: str, retry: RetryPolicy) -> Client:
        try:
            return Client(target, timeout_s=self.timeout_s, retry=retry, tls=self.tls, metadata=self.metadata)
        except OSError as error:
            fail(str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The command must close it."""


def connected_later(command: Callable[..., None]) -> Callable[..., None]:
    """As `connected`, for a command that chooses the server itself: it gets a Connector."""
    return connected(command, Connector, target=_OPTIONAL_TARGET)


def connected(
    command: Callable[..., None],
    connect: type[Client | AdminClient | Connector] = Client,
    **other: inspect.Parameter,
) -> Callable[..., None]:
    """Call `command` with an open client as its first argument, and add the options of the connection to its own;
    `other` replaces options of the same name."""
    options = {**inspect.signature(_options, eval_str=True).parameters, **other}
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            client = connect(**_options(**{name: given.pop(name) for name in options}))
        except (OSError, ValueError) as error:  # an unreadable TLS file, a certificate without its key
            fail(str(error))
        with client:
            try:
                command(client, **given)
            except PredictError as error:
                fail(explain(error, admin=connect is AdminClient))
            finally:
                if isinstance(client, AdminClient) and client.not_kept:
                    typer.echo(
                        f"changes are in force until the server ends, but are not kept: {client.not_kept}",
                        err=True,
                    )

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature([*keyword_only, *options.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run
