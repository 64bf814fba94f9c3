# SPDX-License-Identifier: Apache-2.0
"""Finds models that have changed since the last look, and their versions that are still being written. Knows signatures
and hashes, not what is served. Used by one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from fused_mlp.models.repository.repository import Repository, Signature

Versions = dict[int, Signature]


@dataclass(frozen=True)
class Change:
    """A change of one model. `held`: versions that are still being written."""

    model: str
    held: frozenset[int]
    versions: Versions


class Changes:
    """`settle_s`: a version without a hash of its weights is complete when it has not changed for so long. `served`:
    the versions by model, since operators have some loaded too."""

    def __init__(
        self,
        repository: Repository,
        settle_s: float,
        served: Callable[[], Mapping[str, Collection[int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._settle_s = settle_s
        self._served = served
        self._clock = clock
        self._known = dict(repository.seen)  # by the scan: what has changed since is found
        self._since: dict[tuple[str, int], tuple[Signature, float]] = {}

    @property
    def waiting(self) -> bool:
        """Whether any version is being written."""
        return bool(self._since)

    def find(self) -> Iterator[Change]:
        now = self._repository.look()
        since, self._since = self._since, {}
        served = self._served()
        for name in sorted(now.keys() | self._known.keys() | served.keys()):
            before, after = self._known.get(name, {}), now.get(name, {})
            gone = (before.keys() | set(served.get(name, ()))) - after.keys()
            if before == after and name in now and not gone:
                continue
            new = {number for number, signature in after.items() if before.get(number) != signature}
            held = frozenset(
                number for number in new if not self._is_complete(name, number, after[number], since)
            )
            if held == new and not gone and name in self._known:
                continue
            yield Change(name, held, after)

    def done(self, change: Change) -> None:
        """Records that a change was followed, except for the held versions."""
        before = self._known.get(change.model, {})
        after = {
            number: before.get(number, ()) if number in change.held else signature
            for number, signature in change.versions.items()
            if number not in change.held or number in before
        }
        if after or change.versions:
            self._known[change.model] = after
        else:
            self._known.pop(change.model, None)

    def _is_complete(
        self,
        name: str,
        number: int,
        signature: Signature,
        since: dict[tuple[str, int], tuple[Signature, float]],
    ) -> bool:
        key, now = (name, number), self._clock()
        seen, first = since.get(key, (None, now))
        if seen != signature:
            first = now
        if now - first >= self._settle_s or self._repository.is_whole(name, number):
            return True
        self._since[key] = signature, first
        return False
