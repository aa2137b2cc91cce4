"""Decides which names a server of this machine answers to.

A web page in a browser on this machine can reach a server on loopback. It may rebind its own domain
name to 127.0.0.1, and read the answers as those of its own site. It then sends that name as Host.
"""

import ipaddress
import re
import socket
from collections.abc import Container, Iterable

# A name, or an address in brackets, and a port.
_HOST = re.compile(r"(?P<name>[^][:@/?#\\\s]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


def own_names(host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """The names of a server that listens on `host`, in lower case.

    Args:
        host: the name or address that it listens on.
        others: further names that it has.
    """
    names = {"localhost", host, socket.gethostname(), *others}
    return frozenset(name.lower().rstrip(".") for name in names)


def allows_host(header: str, names: Container[str]) -> bool:
    """Whether a Host header has one of these names, an IP address, or a name without a dot."""
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    name = match["name"].strip("[]").rstrip(".").lower()
    # An attacker's page has a domain name. Names without a dot, such as those of containers,
    # resolve only on the local network.
    is_local = name != "" and "." not in name
    return is_local or name in names or _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on this address or name."""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    """Whether this is an IP address. A web page cannot have an IP address as its domain name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
