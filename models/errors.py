"""Errors of this package. They carry a readable sentence; what becomes of them is the caller's business."""


class ModelLoadError(Exception):
    """A model could not be read, converted or validated. The text says what was expected and what came."""
