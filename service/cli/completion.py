# SPDX-License-Identifier: Apache-2.0
"""Values that a shell offers for arguments. A server that is away, slow or needs TLS offers none, and says nothing."""

from __future__ import annotations

import typer

TIMEOUT_S = 0.5


def model_names(context: typer.Context, incomplete: str) -> list[str]:
    """Of the server that the command line names."""
    try:
        from fused_mlp.service.client import Client, RetryPolicy

        target = context.params.get("target") or "127.0.0.1:8001"
        with Client(target, timeout_s=TIMEOUT_S, retry=RetryPolicy(attempts=1)) as client:
            return [model.name for model in client.models() if model.name.startswith(incomplete)]
    except Exception:  # in the middle of a line that is being typed
        return []
