"""Errors of this package. Each carries one readable sentence."""

from __future__ import annotations

from typing import Self

from pydantic import ValidationError


class ModelLoadError(Exception):
    """A model could not be read, converted or validated. The text, one line, says what was expected and
    what came."""

    @classmethod
    def from_validation(cls, error: ValueError, where: str = "") -> Self:
        """Pydantic's first error as one line: `model.json: spec.layers.0.activation: ...`."""
        text = str(error)
        if isinstance(error, ValidationError):
            first, *others = error.errors()
            path = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            text = f"{path}: {message}" if path else message
            if others:
                text += f" (and {len(others)} more)"
        return cls(f"{where}: {text}" if where else text)


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to be part of our one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
