"""An HTTP server that gives the answers of a test."""

from __future__ import annotations

import threading
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sparkwal.store.config import S3Config

Reply = tuple[int, dict[str, str], bytes] | None
SECRETS = ("AKIDSECRETIDENTITY", "wJalrXsecretKEY", "token-of-the-session")
CONFIG = S3Config(
    region="us-east-1",
    access_key_id=SECRETS[0],
    secret_access_key=SECRETS[1],
    session_token=SECRETS[2],
)


class Stub:
    """An HTTP server that gives the answers of a test.

    The answer None closes the connection. A success has the ETag of the body, unless the test
    gives another one.

    Attributes:
        interim: the status of an interim reply to the next request. Its own reply waits for one
            more request on the connection.
    """

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.interim: int | None = None
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stub.bodies.append(sent)
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = stub.replies.pop(0) if stub.replies else (500, {}, b"")
                stub.requests.append((self.command, self.path, headers))
                if reply is None:
                    self.close_connection = True
                    return
                if (interim := stub.interim) is not None:
                    # Before the client reads it: its next request may be on another connection.
                    stub.interim = None
                    self.wfile.write(f"HTTP/1.1 {interim} Wait\r\n\r\n".encode())
                    if not self.rfile.peek(1):  # type: ignore[attr-defined]
                        self.close_connection = True
                        return
                status, fields, body = reply
                self.send_response(status)
                about = {"Content-Length": str(len(body))}
                if status in (200, 206):
                    about["ETag"] = f'"{md5(sent or body).hexdigest()}"'
                for name, value in {**about, **fields}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                # A length that is a lie: the rest never comes.
                self.close_connection = "Content-Length" in fields

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def listed(*entries: tuple[str, int], prefix: str = "a/", more: str = "") -> Reply:
    """A page of the bucket: keys and sizes. `more`: the token of the next page."""
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    truncated = str(bool(more)).lower()
    of = f"<Name>bucket</Name><Prefix>{prefix}</Prefix><IsTruncated>{truncated}</IsTruncated>"
    keys = [f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>" for key, size in entries]
    body = f"<ListBucketResult>{of}{token}{''.join(keys)}</ListBucketResult>"
    return 200, {}, body.encode()


def error(status: int, code: str, message: str = "said so", **headers: str) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return status, headers, body
