"""The repository of a folder that mirrors a store: versions that could not be fetched belong to it too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fused_mlp.models import Repository
from fused_mlp.models.repository import Signature
from fused_mlp.service.stores.mirror import Key, Mirror


class Mirrored(Repository):
    def __init__(self, mirror: Mirror, single: str) -> None:
        super().__init__(mirror.folder, single)
        self._mirror = mirror

    @property
    def shown(self) -> str:
        return self._mirror.shown

    @property
    def problems(self) -> list[str]:
        return self._mirror.problems or super().problems

    def missing(self) -> Mapping[Key, str]:
        return self._mirror.missing()

    def look(self) -> dict[str, dict[int, Signature]]:
        """While another server changes the folder, nothing has changed: a version that it replaces is away for a
        moment."""
        with self._mirror.locked(shared=True) as alone:
            return super().look() if alone else self.seen

    def _model_paths(self) -> list[Path]:
        return super()._model_paths() if self.root.is_dir() else []

    def _why_empty(self) -> str:
        why = "; ".join(self._mirror.problems) or "it has not answered yet"
        return f"{self.shown}: no version could be fetched, and none was before: {why}"
