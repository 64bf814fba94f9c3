# SPDX-License-Identifier: Apache-2.0
"""Lists a store as versions with their files. Knows fsspec, which has a file system for each kind of URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fused_mlp.models import ModelLoadError

# The files of a version: its description, weights (or shards and their index), and hashes.
_PATH = re.compile(
    r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]{0,127})/(?P<version>[1-9][0-9]{0,17})/"
    r"(?P<file>model\.json|[\w-][\w.-]*\.safetensors(\.sha256|\.index\.json)?)",
    re.ASCII,
)
# Fields that identify the content of a file, by the names that file systems use; the time of the last change if a file
# system has nothing better.
_IDENTITIES = ("ETag", "etag", "md5Hash", "md5", "blob_id", "sha256", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified")
_PACKAGES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}


@dataclass(frozen=True)
class RemoteFile:
    path: str  # as the file system expects it
    size: int
    identity: str


Version = dict[str, RemoteFile]  # by name


def open_store(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it. Raises ModelLoadError if a package is missing."""
    scheme = url.partition("://")[0]
    extra = _PACKAGES.get(scheme)
    install = f"pip install 'fused-mlp[{extra}]'" if extra else "pip install fsspec, and what it asks for"
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

        # Listings are not cached: the next look must see changes.
        store, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
        raise ModelLoadError(f"{url}: {error}; {install}") from None
    return store, root.rstrip("/")


def list_versions(store: Any, root: str, single: str | None) -> dict[tuple[str, int], Version]:
    """By model and number. `single`: the name of the model whose files lie at the root, if they do. Raises the errors
    of the file system."""
    store.invalidate_cache()
    found: dict[tuple[str, int], Version] = {}
    prefix = root.removeprefix("/") + "/"
    for path, details in store.find(root, detail=True).items():
        inside = path.removeprefix("/").removeprefix(prefix)
        place = _PATH.fullmatch(inside if "/" in inside or single is None else f"{single}/1/{inside}")
        if place is None or details.get("type") == "directory":
            continue
        key = place["model"], int(place["version"])
        file = RemoteFile(path, int(details.get("size") or 0), _identity(details))
        found.setdefault(key, {})[place["file"]] = file
    return found


def _identity(details: dict[str, Any]) -> str:
    for name in (*_IDENTITIES, *_TIMES):
        if details.get(name):
            return str(details[name])
    return ""
