"""What can go wrong with a request, as classes that carry data, and the one table that maps them to gRPC
codes and to the text a caller may see. Knows nothing of grpc itself: codes are numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

MAX_NAME = 80


class Code(enum.IntEnum):
    """gRPC status codes, so that only the fronts need grpc."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class ServiceError(Exception):
    """Base of all errors that a caller is told about by name."""


class InvalidInput(ServiceError):
    """The request cannot be right, whatever the server's state. The text says expected and got."""


class ModelNotFound(ServiceError):
    def __init__(self, model: str, version: str = "") -> None:
        self.model = model
        which = f" version {shorten(version)}" if version else ""
        super().__init__(f"model {shorten(model)!r}{which} is not served here")


class NotReady(ServiceError):
    """The model exists but cannot answer (still loading, or it failed to load)."""


class ShuttingDown(ServiceError):
    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class Overloaded(ServiceError):
    def __init__(self, limit: str, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(f"{limit}; retry in {retry_after_ms} ms")


class DeadlineExpired(ServiceError):
    def __init__(self, where: str) -> None:
        super().__init__(f"the deadline passed {where}")


class Cancelled(ServiceError):
    def __init__(self) -> None:
        super().__init__("cancelled by the caller")


class Unauthenticated(ServiceError):
    """The caller did not say who it is, or not convincingly."""


class PermissionDenied(ServiceError):
    """The caller asked for something that the settings do not allow."""


class KernelFailed(ServiceError):
    """A kernel raised. The traceback goes to the log; the caller sees a fixed text."""


@dataclass(frozen=True)
class Answer:
    """What a caller is told: gRPC code, text, trailing metadata."""

    code: Code
    text: str
    trailers: tuple[tuple[str, str], ...] = ()


CODES: dict[type[ServiceError], Code] = {
    InvalidInput: Code.INVALID_ARGUMENT,
    ModelNotFound: Code.NOT_FOUND,
    NotReady: Code.UNAVAILABLE,
    ShuttingDown: Code.UNAVAILABLE,
    Overloaded: Code.RESOURCE_EXHAUSTED,
    DeadlineExpired: Code.DEADLINE_EXCEEDED,
    Cancelled: Code.CANCELLED,
    Unauthenticated: Code.UNAUTHENTICATED,
    PermissionDenied: Code.PERMISSION_DENIED,
    KernelFailed: Code.INTERNAL,
}


def answer(error: Exception, request_id: str) -> Answer:
    """Map an error to what the caller is told. Anything unknown is INTERNAL, with nothing of its text."""
    code = CODES.get(type(error), Code.INTERNAL) if isinstance(error, ServiceError) else Code.INTERNAL
    if code is Code.INTERNAL:
        return Answer(code, f"internal error; request id {shorten(request_id)}")
    trailers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, Overloaded):
        trailers = (("retry-after-ms", str(error.retry_after_ms)),)
    return Answer(code, str(error), trailers)


def shorten(name: str) -> str:
    """A client's text, cut to a length that is safe to send back and to log."""
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."
