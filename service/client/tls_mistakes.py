# SPDX-License-Identifier: Apache-2.0
"""What probably went wrong with TLS when a connection could not be made: gRPC's own texts end in "OK", "Socket closed"
or TSI_DATA_CORRUPTED."""

from __future__ import annotations

# (in gRPC's text, the client used TLS, what it means); a server that closes a new connection says no more than that.
_CLOSED = ("Socket closed", "Connection reset by peer")
_MISTAKES = (
    (("WRONG_VERSION_NUMBER",), True, "the server speaks plaintext, not TLS: connect without TLS"),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        True,
        "the server's certificate is not trusted: name the root CA that signed it",
    ),
    (
        ("Hostname Verification Check failed",),
        True,
        "the server's certificate is for another name: give the name that is in it",
    ),
    (
        ("TSI_DATA_CORRUPTED", *_CLOSED),
        True,
        "the server ended the TLS handshake: it may want a client certificate, or not trust the one it got",
    ),
    (_CLOSED, False, "the server closed the connection: it may want TLS"),
)


def find_mistake(details: str, *, secure: bool) -> str | None:
    """For the text of a connection that could not be made; None when it does not look like a mistake with TLS."""
    for texts, with_tls, meaning in _MISTAKES:
        if with_tls == secure and any(text in details for text in texts):
            return meaning
    return None
