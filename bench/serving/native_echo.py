# SPDX-License-Identifier: Apache-2.0
"""The native front alone: it answers every call with its own message. Prints its port."""

from __future__ import annotations

import os
import signal
import sys

from fused_mlp.service import _front
from fused_mlp.service.fronts.ports import bind, port_of

if __name__ == "__main__":
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    listener = bind("127.0.0.1", 0)
    port = port_of(listener)
    server = _front.FrontServer(listener=listener.detach(), loops=loops)
    server.start()
    server.listen()
    print(port, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop()
