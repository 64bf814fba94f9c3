# SPDX-License-Identifier: Apache-2.0
"""File descriptors of the process: raises the limit at start, and keeps some for everything but connections."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

# For probes and scrapes (at most 64 connections of the metrics port), model files, logs, stores and event loops.
RESERVED = 128
_MIN_CONNECTIONS = 16


def raise_limit() -> None:
    """The soft limit is low (1024) for the sake of select(), which this server does not use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_that_fit(wanted: int) -> int:
    """As many connections as leave RESERVED descriptors; a warning if that is fewer than wanted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(_MIN_CONNECTIONS, limit - RESERVED) if limit != resource.RLIM_INFINITY else wanted
    if wanted <= room:
        return wanted
    log.warning(
        "max_connections: %d instead of %d, because of the limit of %d file descriptors (ulimit -n)",
        room,
        wanted,
        limit,
    )
    return room
