# SPDX-License-Identifier: Apache-2.0
"""Rereads the weights of a served version. Its kernels have packed copies, so the originals are not kept in memory; a
further kernel and the referee read them from the files again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np

from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.repository.repository import FoundVersion, Repository
from fused_mlp.models.repository.version_directory import stored_tensors
from fused_mlp.models.weights.precision import to_precision
from fused_mlp.models.weights.quantization import Precision
from fused_mlp.models.weights.tables import identity_of


@dataclass(frozen=True)
class StoredWeights:
    """`digest`: of the weights in the files; those read again have to be the same. None: not loaded yet.
    `precision`: what they were loaded in, except of the steps `kept`; the files may have another one. `reduced`: the
    files have fewer bits than float32."""

    repository: Repository
    found: FoundVersion
    digest: bytes | None = None
    precision: Precision = "float32"
    kept: frozenset[str] = frozenset()
    reduced: bool = False

    @classmethod
    def of(cls, repository: Repository, found: FoundVersion, saved: Mlp) -> StoredWeights:
        return cls(repository, found, digest_of(saved), saved.precision, reduced=bool(saved.reduced))

    def loaded_as(self, mlp: Mlp) -> StoredWeights:
        kept = frozenset(mlp.error.kept) if mlp.error is not None else frozenset[str]()
        return replace(self, precision=mlp.precision, kept=kept)

    def read(self) -> Mlp:
        """In the precision that they were loaded in. Raises ModelLoadError, also when the files have changed; its text
        shows no path, because callers may see it."""
        return to_precision(self.read_saved(), self.precision, self.kept)

    def read_saved(self) -> Mlp:
        """In the precision of the files."""
        try:
            mlp = self.repository.read(self.found, again=True)
        except ModelLoadError as error:
            raise ModelLoadError(f"its weights cannot be read again: {self.without_path(error)}") from error
        if digest_of(mlp) != self.digest:
            raise ModelLoadError("its files have changed since it was loaded; load it again")
        return mlp

    def without_path(self, error: ModelLoadError) -> str:
        return without_path(self.repository, error)


def digest_of(mlp: Mlp) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in stored_tensors(mlp).values():
        identity = identity_of(array)
        if identity is not None:  # a table: reading all of it is what mapping avoids
            digest.update(identity.encode())
            continue
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def without_path(repository: Repository, error: Exception) -> str:
    """The reason without where the repository lies on this machine."""
    text = str(error)
    for root in repository.roots:
        text = text.replace(f"{root}{os.sep}", "")
    return text
