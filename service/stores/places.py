# SPDX-License-Identifier: Apache-2.0
"""The repositories of FUSED_MLP_MODEL_REPOSITORY: folders, and stores with the folders that mirror them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from fused_mlp.models import ModelLoadError, Repository
from fused_mlp.models.repository.repositories import Repositories
from fused_mlp.models.repository.repository import Signature
from fused_mlp.service.settings.settings import Settings
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
        """Runs while no version is being replaced: a version that is replaced is missing for a moment."""
        try:
            with self.mirror.locked(shared=True):
                return super().look()
        except ModelLoadError as error:
            log.error("%s; keeping the current versions", error)
            self._unreadable = {"": str(error)}
            return self.seen

    def _model_paths(self) -> list[Path]:
        return super()._model_paths() if self.root.is_dir() else []

    def _why_empty(self) -> str:
        why = "; ".join(self.mirror.problems) or "it has not answered yet"
        return f"{self.shown}: no version could be fetched, and none was before: {why}"


class Places:
    def __init__(self, settings: Settings) -> None:
        cache = settings.repository_cache or _usual_cache()
        self.mirrors: list[Mirror] = []
        parts: list[Repository] = []
        for place in settings.repositories:
            root, url = Path(place), "://" in place
            single = settings.model_name or (
                place.rstrip("/").rpartition("/")[2] if url else root.resolve().name
            )
            if url:
                mirror = Mirror(place, cache, single=single)
                self.mirrors.append(mirror)
                parts.append(Mirrored(mirror, single))
            else:
                parts.append(Repository(root, single))
        self.repository = parts[0] if len(parts) == 1 else Repositories(parts)

    def recover(self) -> None:
        for mirror in self.mirrors:
            mirror.recover()

    def mirrors_of(self, model: str) -> list[Mirror]:
        """Looks in the first repository that has the model, and in those before it, which may have it by now. Raises
        ModelLoadError for an invalid name."""
        mirrors = []
        for part in self.repository.parts:
            if isinstance(part, Mirrored):
                mirrors.append(part.mirror)
            if part.has(model):
                break
        return mirrors

    @property
    def never_fetched(self) -> list[Mirror]:
        return [mirror for mirror in self.mirrors if mirror.empty]

    @property
    def fetching(self) -> str:
        return "; ".join(mirror.fetching for mirror in self.mirrors if mirror.fetching)

    def stop(self) -> None:
        """Cancels a running fetch."""
        for mirror in self.mirrors:
            mirror.stopping = True

    def failures(self) -> dict[str, int]:
        """Counts since the start, by URL."""
        return {mirror.shown: mirror.failed for mirror in self.mirrors}


def _usual_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fused-mlp" / "repositories"
