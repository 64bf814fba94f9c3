# SPDX-License-Identifier: Apache-2.0
"""Certificates for one test session: an authority, a server for localhost, a client; made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerFiles:
    certificate: Path
    key: Path
    client_ca: Path | None = None


class Certificates:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            "req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", "/CN=test authority",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self._ca_key, "-out", self.ca,
        )  # fmt: skip
        self._server, self._server_key = self.sign_server("server")
        self.client, self.client_key = self.sign("client", "extendedKeyUsage=clientAuth")

    def server_files(self, *, client_ca: bool = False) -> ServerFiles:
        return ServerFiles(self._server, self._server_key, self.ca if client_ca else None)

    def sign_server(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """Another certificate and key for localhost."""
        return self.sign(name, "subjectAltName=DNS:localhost,IP:127.0.0.1", days)

    def revocation_list(self, *certificates: Path) -> Path:
        """A list that names these certificates, and no other."""
        index, crl = self._folder / "index.txt", self._folder / f"{len(certificates)}.crl"
        index.write_text("")
        (self._folder / "ca.conf").write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={index}\ndefault_md=sha256\ndefault_crl_days=2\n"
        )
        own = ("-config", self._folder / "ca.conf", "-cert", self.ca, "-keyfile", self._ca_key)
        for certificate in certificates:
            _openssl("ca", *own, "-revoke", certificate)
        _openssl("ca", *own, "-gencrl", "-out", crl)
        return crl

    def sign(self, name: str, extension: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate and its key; its common name is `test <name>`."""
        key, request, certificate = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        (self._folder / f"{name}.ext").write_text(f"{_LEAF}{extension}\n")
        _openssl("req", *_KEY, "-nodes", "-subj", f"/CN=test {name}", "-keyout", key, "-out", request, "-new")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial",
            "-days", days, "-extfile", self._folder / f"{name}.ext", "-out", certificate,
        )  # fmt: skip
        return certificate, key


# What Python's ssl demands of a certificate from 3.13 on.
_LEAF = """basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
