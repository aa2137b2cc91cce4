"""A certificate authority of our own, and a server that speaks TLS with what it signed."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = x509.IPAddress(ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("store.example")
_PEM = serialization.Encoding.PEM
_PLAIN = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()


class Authority:
    """Signs certificates.

    Attributes:
        file: its certificate, which clients trust.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = _builder(name, name, self._key.public_key(), datetime.now(UTC), 1)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def server(self, holder: x509.GeneralName, *, begins: int = 0) -> ssl.SSLContext:
        """For a server of this name; its certificate is good for a day, `begins` days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        begin = datetime.now(UTC) + timedelta(days=begins)
        made = _builder("server", self._name, key.public_key(), begin, 1)
        made = made.add_extension(x509.SubjectAlternativeName([holder]), critical=False)
        file = self._folder / f"{self._name}-server.pem"
        file.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
            + key.private_bytes(_PEM, *_PLAIN)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePublicKey, begin: datetime, days: int
) -> x509.CertificateBuilder:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - timedelta(minutes=5))
        .not_valid_after(begin + timedelta(days=days))
    )


@contextmanager
def behind_tls(upstream: str, context: ssl.SSLContext) -> Iterator[str]:
    """The URL of a server that passes what it decrypts on to `upstream`."""
    target = urlsplit(upstream)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # a client that does not trust it goes away
                secure = context.wrap_socket(self.request, server_side=True)
                with socket.create_connection((str(target.hostname), target.port or 80)) as plain:
                    back = threading.Thread(target=_pass_on, args=(plain, secure), daemon=True)
                    back.start()
                    _pass_on(secure, plain)
                    back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
