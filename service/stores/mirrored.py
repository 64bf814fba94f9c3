# SPDX-License-Identifier: Apache-2.0
"""The repository of a folder that mirrors a store: versions that could not be fetched belong to it too."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fused_mlp.models import ModelLoadError, Repository
from fused_mlp.models.repository import Signature
from fused_mlp.service.stores.mirror import Key, Mirror

log = logging.getLogger(__name__)


class Mirrored(Repository):
    def __init__(self, mirror: Mirror, single: str) -> None:
        super().__init__(mirror.folder, single)
        self.mirror = mirror

    @property
    def shown(self) -> str:
        return self.mirror.shown

    @property
    def problems(self) -> list[str]:
        return self.mirror.problems or super().problems

    def missing(self) -> Mapping[Key, str]:
        return self.mirror.missing()

    def look(self) -> dict[str, dict[int, Signature]]:
        """While nothing is being replaced: such a version is away for a moment."""
        try:
            with self.mirror.locked(shared=True):
                return super().look()
        except ModelLoadError as error:
            log.error("%s; what is served of it stays", error)
            self._unreadable = [str(error)]
            return self.seen

    def _model_paths(self) -> list[Path]:
        return super()._model_paths() if self.root.is_dir() else []

    def _why_empty(self) -> str:
        why = "; ".join(self.mirror.problems) or "it has not answered yet"
        return f"{self.shown}: no version could be fetched, and none was before: {why}"
