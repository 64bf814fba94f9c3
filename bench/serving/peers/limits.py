# SPDX-License-Identifier: Apache-2.0
"""How the peers are set up, the same for all that have such a setting. Imports nothing: each peer reads it in its own
venv, and compared.py in ours."""

from __future__ import annotations

WORKERS = 2
MAX_BATCH = 64
MAX_WAIT_S = 0.001
THREADS = 8
# BentoML refuses requests that would take longer: well above the time of its answers.
MAX_LATENCY_S = 1
# The queue of Ray Serve: more than are ever outstanding.
MAX_ONGOING = 256
