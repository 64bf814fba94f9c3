# SPDX-License-Identifier: Apache-2.0
"""The child process of a ChildServer: runs `fused-mlp serve` until its stdin ends, which happens when the parent stops
or dies. Deletes the folder that it is given, if any: a killed parent cannot."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading


def main() -> None:
    folder = sys.argv[1]
    sys.argv = ["fused-mlp", "serve"]
    threading.Thread(target=_follow_parent, name="parent", daemon=True).start()
    # Imported after the thread has started, because it is slow: a parent that dies in this time is noticed.
    from fused_mlp.service.cli import main as run

    try:
        run()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _follow_parent() -> None:
    # Not sys.stdin, whose lock this thread would hold when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
