# SPDX-License-Identifier: Apache-2.0
"""What FUSED_MLP_MODEL_REPOSITORY names: folders, and stores with the folders that mirror them."""

from __future__ import annotations

import os
from pathlib import Path

from fused_mlp.models import Repository
from fused_mlp.models.repositories import Repositories
from fused_mlp.service.settings.settings import Settings
from fused_mlp.service.stores.mirror import Mirror
from fused_mlp.service.stores.mirrored import Mirrored


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
        """Of the first repository that has the model, and of those before, which may have it by now. Raises
        ModelLoadError for what is no name."""
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
        """Ends a fetch that has begun."""
        for mirror in self.mirrors:
            mirror.stopping = True

    def failures(self) -> dict[str, int]:
        """Since the start, by URL."""
        return {mirror.shown: mirror.failed for mirror in self.mirrors}


def _usual_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fused-mlp" / "repositories"
