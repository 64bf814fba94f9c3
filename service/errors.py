# SPDX-License-Identifier: Apache-2.0
"""The errors of a request, as classes that carry data, and the function that turns them into what a caller is sent.
Codes are numbers here: only the fronts know grpc.

The engine has a closed set of outcomes, with codes and texts of its own (csrc/engine/status.hpp); both fronts get
them here as EngineRefused."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(enum.IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# Failures for which only the caller is to blame. DEADLINE_EXCEEDED is not one: a slow server makes callers give up.
CALLERS_OWN = frozenset(
    (
        Code.OK,
        Code.CANCELLED,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.PERMISSION_DENIED,
        Code.UNAUTHENTICATED,
    )
)


class ServiceError(Exception):
    """Base of the errors whose text is sent to the caller, in one line."""


class InvalidInput(ServiceError):
    """The request is wrong whatever the server's state. The text says what was expected and what came."""


class ModelNotFound(ServiceError):
    """`name` comes quoted and cut to a sane length (see _engine.quote_name)."""

    def __init__(self, name: str, version: int | None = None) -> None:
        what = "is not served here"
        if version is not None:
            what = f"has no version {version}" if version else "has no version that can answer"
        super().__init__(f"model {name} {what}")


class UnknownPath(ServiceError):
    """The REST port has no such path."""


class NotReady(ServiceError):
    """The model exists but cannot answer."""


class Overloaded(ServiceError):
    """More than the server allows at once. The text says which limit."""


class PermissionDenied(ServiceError):
    """The settings do not allow what was asked for, or not to this caller."""


class Unauthenticated(ServiceError):
    """Only known callers may ask for this, and this one has shown neither a certificate nor a token."""


class Unsupported(ServiceError):
    """This installation cannot do what was asked for. The text says what it lacks."""


class EngineRefused(ServiceError):
    """The engine did not run a request, or a kernel failed: `code` comes from the engine's own table."""

    def __init__(self, code: int, text: str, retry_after_ms: int = 0) -> None:
        super().__init__(text)
        self.code = Code(code)
        self.retry_after_ms = retry_after_ms


CODES: dict[type[ServiceError], Code] = {
    InvalidInput: Code.INVALID_ARGUMENT,
    ModelNotFound: Code.NOT_FOUND,
    UnknownPath: Code.NOT_FOUND,
    NotReady: Code.UNAVAILABLE,
    Overloaded: Code.RESOURCE_EXHAUSTED,
    PermissionDenied: Code.PERMISSION_DENIED,
    Unsupported: Code.FAILED_PRECONDITION,
    Unauthenticated: Code.UNAUTHENTICATED,
}


@dataclass(frozen=True)
class Answer:
    """An error as the caller gets it: gRPC code, text, trailing metadata."""

    code: Code
    text: str
    trailers: tuple[tuple[str, str], ...] = ()


def answer(error: Exception, request_id: str) -> Answer:
    """An unknown error is INTERNAL, and its text is not sent. `request_id` is short (see PredictInput.short_id)."""
    code = Code.INTERNAL
    if isinstance(error, EngineRefused):
        code = error.code
    elif isinstance(error, ServiceError):
        code = CODES.get(type(error), code)
    if code is Code.INTERNAL:
        return Answer(code, f"internal error; request id {request_id}")
    retry = getattr(error, "retry_after_ms", 0)
    return Answer(code, str(error), (("retry-after-ms", str(retry)),) if retry else ())
