# SPDX-License-Identifier: Apache-2.0
"""Errors of this package. Each carries one readable sentence."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError

_MAX_ERRORS = 1000
_LONGEST_TEXT = 1000


class ModelLoadError(Exception):
    """A model could not be read, converted or validated. The text, one line, says what was expected and what came."""

    @classmethod
    def from_validation(cls, error: ValueError, where: str = "") -> Self:
        """Pydantic's first error as one line: `model.json: spec.layers.0.activation: ...`."""
        text = str(error)
        if isinstance(error, ValidationError):
            count = error.error_count()
            if count > _MAX_ERRORS:  # pydantic would make all of them, gigabytes for a file full of nonsense
                text = f"not a model description: {count} errors"
            else:
                first, *others = error.errors(include_url=False, include_input=False)
                path = ".".join(map(str, first["loc"]))
                message = first["msg"].removeprefix("Value error, ")
                text = f"{path}: {message}" if path else message
                # A list with a bad item is "too short" as well: that says nothing new.
                more = sum(each["loc"] != first["loc"][: len(each["loc"])] for each in others)
                text = _one_line(text) + (f" (and {more} more)" if more else "")
        return cls(f"{where}: {_one_line(text)}" if where else _one_line(text))


def _one_line(text: str) -> str:
    """Names in a file may hold anything, of any length."""
    text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def as_load_error(error: Exception, where: object) -> ModelLoadError:
    """Any exception raised while reading `where`, in one line, so that a bad file affects only its own version."""
    if isinstance(error, ModelLoadError):
        return error
    if isinstance(error, OSError) and error.strerror:
        return ModelLoadError(f"{where}: {error.strerror.lower()}")
    if isinstance(error, RecursionError):
        return ModelLoadError(f"{where}: nested too deeply")
    if isinstance(error, MemoryError):
        return ModelLoadError(f"{where}: does not fit into memory")
    return ModelLoadError(f"{where}: {type(error).__name__}: {_one_line(first_line(error))}")


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to be part of our one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
