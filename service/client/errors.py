# SPDX-License-Identifier: Apache-2.0
"""The only error that calls raise. It is made from a gRPC status, also from one inside a stream."""

from __future__ import annotations

import re

import grpc

# (in gRPC's text, the client used TLS, the explanation); a server that closes a new connection gives no other reason.
_CLOSED = ("Socket closed", "Connection reset by peer")
_MISTAKES = (
    (("WRONG_VERSION_NUMBER",), True, "the server speaks plaintext, not TLS: connect without TLS"),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        True,
        "the server's certificate is not trusted: name the root CA that signed it",
    ),
    (
        ("Hostname Verification Check failed",),
        True,
        "the server's certificate is for another name: give the name that is in it",
    ),
    (
        ("TSI_DATA_CORRUPTED", *_CLOSED),
        True,
        "the server ended the TLS handshake: it may want a client certificate, or not trust the one it got",
    ),
    (_CLOSED, False, "the server closed the connection: it may want TLS"),
)


def find_mistake(details: str, *, secure: bool) -> str | None:
    """For the text of a connection that could not be made; None when it does not look like a mistake with TLS."""
    for texts, with_tls, meaning in _MISTAKES:
        if with_tls == secure and any(text in details for text in texts):
            return meaning
    return None


# gRPC's texts when it cannot connect: "failed to connect to all addresses; last error: ...: <reason>" or
# "errors resolving <name>: [...: <reason>]". Only the reason at the end is shown.
_UNREACHABLE = re.compile(
    r"^(?:failed to connect to all addresses|errors resolving).*: ([^:\]]+)\]?$", re.DOTALL
)
_NOT_CONNECTED = "failed to connect to all addresses"
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class PredictError(Exception):
    """A call failed.

    Attributes:
        code: The gRPC status, a `grpc.StatusCode`.
        message: What the server said about it.
        target: The address that was called.
        request_id: The one that the call was given, or that of the item of a stream.
        retry_after_s: When to come back, if a busy server said so.
        unreachable: Whether nothing answered at `target` at all.

    Examples:
        >>> with Client("127.0.0.1:8001") as client:
        ...     try:
        ...         client.predict("no-such-model", [1.0, 2.0])
        ...     except PredictError as error:
        ...         print(error.code.name)
        NOT_FOUND
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        target: str = "",
        request_id: str = "",
        retry_after_s: float | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.target = target
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.unreachable = unreachable

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    @classmethod
    def from_rpc(
        cls, error: grpc.RpcError, *, target: str, request_id: str = "", secure: bool = False
    ) -> PredictError:
        """From the status of a unary call, or of a whole stream. `secure`: the client used TLS."""
        details = error.details() or "the server gave no reason"
        if details.startswith(_NOT_CONNECTED) and (mistake := find_mistake(details, secure=secure)):
            return cls(
                error.code(), f"no connection to {target}: {mistake}", target=target, request_id=request_id
            )
        unreachable = _UNREACHABLE.match(details)
        return cls(
            error.code(),
            f"no answer from {target}: {unreachable[1].strip()}" if unreachable else details,
            target=target,
            request_id=request_id,
            retry_after_s=_retry_after_s(error.trailing_metadata()),
            unreachable=unreachable is not None,
        )

    @classmethod
    def from_number(cls, code: int, message: str, *, target: str, request_id: str) -> PredictError:
        """From the error of one message of a stream; a number that is no gRPC status becomes UNKNOWN."""
        status = _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
        return cls(status, message, target=target, request_id=request_id)


def _retry_after_s(trailers: object) -> float | None:
    for key, value in trailers or ():  # type: ignore[attr-defined]
        if key == "retry-after-ms" and str(value).isdecimal():
            return int(value) / 1e3
    return None
