# SPDX-License-Identifier: Apache-2.0
"""What an operator gets from an authority: ca.pem; tls.pem and tls.key of the server, for localhost; client.pem and
client.key. And a second pair for the server, new.pem and new.key, of the same authority."""

from pathlib import Path

from tests.support.certificates import Certificates

folder = Path.cwd()
authority = Certificates(folder)
for name, new in (("server", "tls"), ("renewed", "new")):
    for path, kind in zip(authority.sign_server(name), ("pem", "key"), strict=True):
        path.rename(folder / f"{new}.{kind}")
