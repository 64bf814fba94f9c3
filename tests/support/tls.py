# SPDX-License-Identifier: Apache-2.0
"""What a peer sees of a TLS port: the certificate it serves, and whether it resumes a session."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path


class Peer:
    """Connects by TLS to ports that speak h2; trusts one authority."""

    def __init__(self, ca: Path, certificate: tuple[Path, Path] | None = None) -> None:
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.set_alpn_protocols(["h2"])
        # A ticket of TLS 1.2 comes with the handshake; that of 1.3 only once something was read.
        self._context.maximum_version = ssl.TLSVersion.TLSv1_2
        if certificate:
            self._context.load_cert_chain(*certificate)

    def serial(self, target: str) -> str:
        """Of the server's certificate."""
        with self._connect(target) as connection:
            return str((connection.getpeercert() or {})["serialNumber"])

    def session(
        self, target: str, earlier: ssl.SSLSession | None = None
    ) -> tuple[ssl.SSLSession | None, bool]:
        """A session to resume later, and whether `earlier` was resumed."""
        with self._connect(target, earlier) as connection:
            return connection.session, bool(connection.session_reused)

    def _connect(self, target: str, earlier: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        host, port = target.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=10)
        return self._context.wrap_socket(plain, server_hostname="localhost", session=earlier)


def serial_of(certificate: Path) -> str:
    """As the openssl command reads it from the file."""
    command = ["openssl", "x509", "-in", str(certificate), "-noout", "-serial"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip().removeprefix("serial=")
