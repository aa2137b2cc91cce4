"""Decides who may send a request to the HTTP job: its Host, Origin and bearer token.

A web page in a browser on this machine can reach a server on loopback. Two checks keep it out: a
page sends an Origin header, and a page that rebinds its own domain name to 127.0.0.1 sends that
name as Host.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sparkwal.errors import OptionError


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
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
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
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise OptionError(f"--token-file {path}: {reason}") from None
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
