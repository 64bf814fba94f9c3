"""A repository in an emulator of Google's storage, mirrored twice: `gcs_case.py MODULES REPOSITORY CACHE PORT`. It is a
program of its own, since its packages are not in the tests' environment. Prints which file it has and the problems,
each time, then where the mirror is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

modules, repository, cache, port = sys.argv[1:]
sys.path.append(modules)  # after our own packages
os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{port}"
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # asks by gRPC, which the emulator does not speak

import gcsfs  # noqa: E402
from gcp_storage_emulator.server import create_server  # noqa: E402

from fused_mlp.service.stores.mirror import Mirror  # noqa: E402

server = create_server("127.0.0.1", int(port), in_memory=True, default_bucket="models")
server.start()
try:
    store = gcsfs.GCSFileSystem(token="anon")
    for path in Path(repository).rglob("*"):
        if path.is_file():
            store.pipe_file(f"models/prod/{path.relative_to(repository)}", path.read_bytes())
    mirror = Mirror("gs://models/prod", Path(cache))
    for _ in range(2):
        mirror.synchronise()
        (source,) = mirror.folder.glob("*/*/.source.json")
        print(source.stat().st_ino, mirror.problems)
    print(mirror.folder)
finally:
    server.stop()
