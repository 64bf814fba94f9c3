# SPDX-License-Identifier: Apache-2.0
"""Where a result comes from: the commit that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def describe_commit() -> str:
    """The commit, marked when the work tree had changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"
