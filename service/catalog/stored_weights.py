"""Where the weights of a served version are: its kernels have packed copies of their own, so the originals are not kept
but read again for the few who need them (a further kernel, the referee)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np

from fused_mlp.models import Mlp, ModelLoadError
from fused_mlp.models.repository import FoundVersion, Repository


@dataclass(frozen=True)
class StoredWeights:
    """`digest`: of the weights that were loaded; those read again have to be the same. None: not loaded yet."""

    repository: Repository
    found: FoundVersion
    digest: bytes | None = None

    @classmethod
    def of(cls, repository: Repository, found: FoundVersion, mlp: Mlp) -> StoredWeights:
        return cls(repository, found, digest_of(mlp))

    def read(self) -> Mlp:
        """Raises ModelLoadError, also when the files have changed. Callers may be told: no path is in the text."""
        try:
            mlp = self.repository.read(self.found)
        except ModelLoadError as error:
            raise ModelLoadError(f"its weights cannot be read again: {self.without_path(error)}") from error
        if digest_of(mlp) != self.digest:
            raise ModelLoadError("its files have changed since it was loaded; load it again")
        return mlp

    def without_path(self, error: ModelLoadError) -> str:
        return without_path(self.repository, error)


def digest_of(mlp: Mlp) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in mlp.tensors().values():
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def without_path(repository: Repository, error: Exception) -> str:
    """The reason without where the repository lies on this machine."""
    return str(error).replace(f"{repository.root}{os.sep}", "")
