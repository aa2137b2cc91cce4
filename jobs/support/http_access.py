"""Decides who may send a request to the HTTP job: its Host, Origin and bearer token.

Two checks keep out a web page in a browser on this machine: a page sends an Origin header, and one
that rebinds its own domain name sends that name as Host (sparkwal.metrics.hosts).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkwal.cli.flags import private_text
from sparkwal.errors import OptionError
from sparkwal.metrics.hosts import allows_host, is_loopback, own_names


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
        if not allows_host(host, self.hosts):
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

    def _has_token(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        sent = token.strip().encode()
        # Compare with every token, so that the time depends on no token's text.
        matches = [hmac.compare_digest(sent, accepted) for accepted in self.tokens]
        return scheme.lower() == "bearer" and any(matches)


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
    return Access(
        own_names(host, hosts),
        frozenset(origin.rstrip("/") for origin in origins),
        () if token_file is None else read_tokens(token_file),
    )
