# SPDX-License-Identifier: Apache-2.0
"""The native front with nothing behind it: every call is answered with its own message. Prints its port."""

from __future__ import annotations

import os
import signal
import sys

from fused_mlp.service import _front

if __name__ == "__main__":
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    server = _front.FrontServer(loops=loops)
    server.start()
    print(server.port, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()
