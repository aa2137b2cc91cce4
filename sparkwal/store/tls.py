"""Whether a server that does not answer plain HTTP speaks TLS instead."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

_SECONDS = 1.0
# Endpoints that have answered, or were asked: none is asked twice.
_plain: set[str | None] = set()


def answered(endpoint: str | None) -> None:
    """An endpoint needs no question any more."""
    _plain.add(endpoint)


def needs_tls(endpoint: str) -> bool:
    """Whether an endpoint that does not answer as it should wants https://."""
    if not endpoint.startswith("http:") or endpoint in _plain:
        return False
    if speaks_tls(endpoint):
        return True
    _plain.add(endpoint)
    return False


def speaks_tls(endpoint: str) -> bool:
    """Try one handshake with an http:// endpoint; False when in doubt."""
    parts = urlsplit(endpoint)
    # Only the question whether it shakes hands: nothing is sent that must stay secret.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 80), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except ssl.SSLError as refused:
        # It refused our hello in TLS's own words.
        return "ALERT" in (refused.reason or "")
    except (OSError, ValueError):
        return False
