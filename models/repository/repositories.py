# SPDX-License-Identifier: Apache-2.0
"""Several repositories as one. A model is that of the first that has it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.repository.repository import FoundModel, Repository, Signature, check_name

log = logging.getLogger(__name__)


class Repositories(Repository):
    """A repository that is away holds up none of the others."""

    def __init__(self, parts: Sequence[Repository]) -> None:
        super().__init__(parts[0].root)
        self._parts = tuple(parts)

    @property
    def parts(self) -> tuple[Repository, ...]:
        return self._parts

    def scan(self, *, headers: bool = True) -> list[FoundModel]:
        """One that is empty or away is told of; none with anything in it is an error."""
        found: dict[str, FoundModel] = {}
        problems = []
        for part in self._parts:
            try:
                for model in part.scan(headers=headers):
                    if model.name in found:
                        log.warning("%s: %s is served from another repository", part.root, model.name)
                    found.setdefault(model.name, model)
            except ModelLoadError as error:
                problems.append(str(error))
        if not found:
            raise ModelLoadError("; ".join(problems))
        for problem in problems:
            log.error("%s", problem)
        self._merge()
        return [found[name] for name in sorted(found)]

    def has(self, name: str) -> bool:
        return any(part.has(name) for part in self._parts)

    def find_or_none(self, name: str) -> FoundModel | None:
        check_name(name)
        for part in self._parts:
            try:
                if found := part.find_or_none(name):
                    return found
            except ModelLoadError:
                if name in part.seen:  # its model is served, not that of the next
                    raise
        return None

    def look(self) -> dict[str, dict[int, Signature]]:
        for part in self._parts:
            part.look()
        return self._merge()

    def _merge(self) -> dict[str, dict[int, Signature]]:
        self.seen = {name: seen for part in reversed(self._parts) for name, seen in part.seen.items()}
        return self.seen

    def is_whole(self, name: str, version: int) -> bool:
        return next((part.is_whole(name, version) for part in self._parts if part.has(name)), False)
