# SPDX-License-Identifier: Apache-2.0
"""The callers that may administer the server or read its metrics: a file with one caller per line, by a name in a
verified client certificate or by the SHA-256 of a token. Knows nothing of gRPC or HTTP."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

NAMES = ("CN:", "DNS:", "URI:")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})(?:\s+#.*)?")


class Callers:
    """Read when it is made, and by each reload(). Both raise ValueError, or OSError, in one line."""

    def __init__(self, path: Path, *, certificates: bool) -> None:
        self.path = path
        self._certificates = certificates  # clients show one that was verified
        self.reload()

    def reload(self) -> None:
        """Keeps what it had when the file cannot be used."""
        lines = [line.strip() for line in self.path.read_text(encoding="utf-8").splitlines()]
        names, digests = set(), []
        for number, line in enumerate(lines, 1):
            if line.startswith("#"):  # not at the end of a name, which may hold one
                continue
            if digest := _DIGEST.fullmatch(line):
                digests.append(bytes.fromhex(digest[1]))
            elif line.startswith(NAMES) and self._certificates:
                names.add(line)
            elif line:  # not shown: it may be a token
                raise ValueError(f"{self.path}, line {number}: {self._expected(line)}")
        if not names and not digests:
            raise ValueError(f"{self.path}: expected at least one caller, got none")
        self._names, self._digests = frozenset(names), tuple(digests)

    def _expected(self, line: str) -> str:
        if line.startswith(NAMES):
            return "a name in a certificate, but clients are not asked for one here"
        names = f"{', '.join(f'{kind}<name>' for kind in NAMES)} or " if self._certificates else ""
        return f"expected {names}sha256:<64 hexadecimal digits in lower case>"

    @property
    def has_tokens(self) -> bool:
        return bool(self._digests)

    def has_name(self, names: Iterable[str]) -> bool:
        return not self._names.isdisjoint(names)

    def has_token(self, token: str) -> bool:
        """Compares with every digest, each in constant time: how long it takes says nothing of a token."""
        digest = hashlib.sha256(token.encode()).digest()
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0
