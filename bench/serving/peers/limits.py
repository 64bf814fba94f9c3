# SPDX-License-Identifier: Apache-2.0
"""How the peers are set up, the same for all that have such a setting. Imports nothing: each peer reads it in its own
venv, and compared.py in ours."""

from __future__ import annotations

WORKERS = 2
MAX_BATCH = 64
MAX_WAIT_S = 0.001
THREADS = 8
# Of BentoML, which refuses requests that would take longer: well above what its answers take.
MAX_LATENCY_S = 1
# Of Ray Serve: more than are ever outstanding.
MAX_ONGOING = 256
