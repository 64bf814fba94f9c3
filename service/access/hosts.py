# SPDX-License-Identifier: Apache-2.0
"""The names under which the REST port and the metrics port may be called, against DNS rebinding: a page makes its own
public name resolve to this server and reads it through the browser of a victim. No page can have the names allowed
here: addresses, names without a dot, names that public DNS does not have, and names of this machine's own domains."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from fused_mlp.service import _engine
from fused_mlp.service.settings.settings import Settings

RESOLVER = Path("/etc/resolv.conf")
# Reserved, or of cluster networks; none of them is delegated in public DNS.
PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".home.arpa", ".test")
ANY = "*"


def allowed_hosts(settings: Settings, safe: object) -> _engine.AllowedHosts:
    """`safe`: nothing to check, because the port has TLS (no certificate of ours has the page's name) or asks for keys
    (the page has none)."""
    named = [name.strip().lower() for name in settings.allowed_hosts.split(",") if name.strip()]
    if safe or ANY in named:
        return _engine.AllowedHosts([ANY])
    own = socket.gethostname().lower()
    named = [name.removeprefix(ANY) for name in named]  # *.example.org
    return _engine.AllowedHosts([*named, own, *PRIVATE_SUFFIXES, *(f".{name}" for name in own_domains())])


def own_domains(resolver: Path = RESOLVER) -> list[str]:
    """The search domains of this machine; in a pod the first is NAMESPACE.svc.DOMAIN. SERVICE.NAMESPACE is not
    allowed: a namespace may have the name of a public top-level domain, such as ai or ml."""
    try:
        text = resolver.read_text(encoding="latin-1")
    except OSError:
        return []
    lists = re.findall(r"^(?:search|domain)\s+(.+)$", text, re.MULTILINE)
    domains = [name.strip(".").lower() for name in lists[-1].split()] if lists else []
    return [name for name in domains if name]
