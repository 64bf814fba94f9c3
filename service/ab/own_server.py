# SPDX-License-Identifier: Apache-2.0
"""A server that `fused-mlp ab` starts for itself, which lets a request name its variant and runs neither a split nor a
shadow."""

from __future__ import annotations

import os
from pathlib import Path

from fused_mlp.service.local.child_server import ADDRESSES, PREFIX, ChildServer, ServerDidNotStart

# Overridden: addresses, and settings that a comparison depends on.
_OURS = {**ADDRESSES, "ALLOW_OVERRIDE": "1", "VARIANT": "fused"}
# Dropped: a split or a shadow would mix the variants that are compared; TLS and the admin port are not needed.
_DROPPED = ("TLS_", "TARGET", "SPLIT", "SHADOW", "POLICY", "ON_MISMATCH", "ADMIN_")


class OwnServer(ChildServer):
    """Both ports are open when the constructor returns."""

    def __init__(self, repository: Path | None) -> None:
        super().__init__(_environment(repository))


def _environment(repository: Path | None) -> dict[str, str]:
    """The caller's own settings (threads, device, backend) apply, except those that a comparison must control."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(tuple(PREFIX + rest for rest in _DROPPED))
    }
    ours = {PREFIX + name: value for name, value in _OURS.items()}
    if repository is not None:
        ours[PREFIX + "MODEL_REPOSITORY"] = str(repository)
    return kept | ours


__all__ = ["OwnServer", "ServerDidNotStart"]
