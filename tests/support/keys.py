# SPDX-License-Identifier: Apache-2.0
"""A file of keys for a server under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fused_mlp.service.access.key_file import new_key


class Keys:
    """Callers by name; each has a key unless it says how else it is recognised."""

    def __init__(self, path: Path, **callers: dict[str, Any]) -> None:
        self.path = path
        self.proxies: list[str] = []
        self._callers: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, str] = {}
        for name, rules in callers.items():
            self.add(name, **rules)
        self.write()

    def __getitem__(self, name: str) -> str:
        return self._keys[name]

    def add(self, name: str, **rules: Any) -> None:
        if not {"subjects", "certificates"} & rules.keys() and name not in self._keys:
            self._keys[name], digest = new_key()
            rules["sha256"] = digest
        self._callers[name] = {"name": name, **rules}

    def remove(self, name: str) -> None:
        del self._callers[name]

    def write(self) -> None:
        made = self.path.with_suffix(".new")
        made.write_text(json.dumps({"callers": list(self._callers.values()), "proxies": self.proxies}))
        made.replace(self.path)

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self[name]}"}
