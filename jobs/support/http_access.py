"""Decides who may send a request to the HTTP job: its Host, Origin and bearer token.

A web page in a browser on this machine can reach a server on loopback. Two checks keep it out: a
page sends an Origin header, and a page that rebinds its own domain name to 127.0.0.1 sends that
name as Host.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwal.cli.flags import private_text
from sparkwal.errors import OptionError

# A name, or an address in brackets, and a port.
_HOST = re.compile(r"(?P<name>[^][:@/?#\\\s]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


@dataclass(frozen=True)
class Refusal:
    """The status and the text with which a request is refused."""

    status: int
    reason: str


@dataclass(frozen=True)
class Access:
    """The headers that a request must have.

    Attributes:
        hosts: names, in lower case, that a Host header may have besides IP addresses and names
            without a dot.
        origins: origins that an Origin header may name.
        tokens: bearer tokens, one of which a request needs; empty if it needs none.
    """

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    tokens: tuple[bytes, ...] = ()

    def refusal(self, headers: Mapping[str, str], *, needs_token: bool) -> Refusal | None:
        """Why a request is refused, or None if it is allowed."""
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy in front may take the other one, and then this body for another request.
            return Refusal(400, "send Content-Length or Transfer-Encoding, not both")
        host = headers.get("host", "")
        if not self._allows_host(host):
            return Refusal(
                421, f"this server is not called {host[:100]!r}; allow the name with --allow-host"
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins:
            return Refusal(
                403, f"web pages of {origin[:100]!r} may not write here; see --allow-origin"
            )
        if needs_token and self.tokens and not self._has_token(headers.get("authorization", "")):
            return Refusal(401, "a bearer token of this server's --token-file is needed")
        return None

    def _allows_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].strip("[]").rstrip(".").lower()
        # An attacker's page has a domain name. Names without a dot, such as those of containers,
        # resolve only on the local network.
        is_local = name != "" and "." not in name
        return is_local or name in self.hosts or _is_address(name)

    def _has_token(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        sent = token.strip().encode()
        # Compare with every token, so that the time depends on no token's text.
        matches = [hmac.compare_digest(sent, accepted) for accepted in self.tokens]
        return scheme.lower() == "bearer" and any(matches)


def _is_address(name: str) -> bool:
    """Whether this is an IP address. A web page cannot have an IP address as its domain name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on this address or name."""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """The tokens of a file, one a line. To replace a token, list both for a while.

    Raises:
        OptionError: the file is unreadable, or a token has fewer than 16 characters. The message
            contains no token.
        Refused: each user of the machine may write to the file, or it is no text.
    """
    try:
        lines = private_text(path, "--token-file", warns=bool).split()
    except OSError as error:
        raise OptionError(f"--token-file {path}: {error.strerror}") from None
    if not lines or any(len(line) < 16 for line in lines):
        raise OptionError(
            f"--token-file {path}: a token a line is expected, each of at least 16 characters"
        )
    return tuple(line.encode() for line in lines)


def access(
    host: str, hosts: Iterable[str], origins: Iterable[str], token_file: Path | None
) -> Access:
    """The rules of a server that listens on `host`.

    Raises:
        OptionError: another machine can reach the server, and it has no token; or the token file is
            wrong.
    """
    if token_file is None and not is_loopback(host):
        raise OptionError(
            f"other machines reach {host}: give --token-file, a file with a token that clients "
            "send as `Authorization: Bearer …`, or listen on 127.0.0.1"
        )
    names = {"localhost", host, socket.gethostname(), *hosts}
    return Access(
        frozenset(name.lower().rstrip(".") for name in names),
        frozenset(origin.rstrip("/") for origin in origins),
        () if token_file is None else read_tokens(token_file),
    )
