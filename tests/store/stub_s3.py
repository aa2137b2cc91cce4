"""An HTTP server that answers what a test says."""

from __future__ import annotations

import threading
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
    """An HTTP server that answers what the test says, None: closes without an answer."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                stub.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = stub.replies.pop(0) if stub.replies else (500, {}, b"")
                stub.requests.append((self.command, self.path, headers))
                if reply is None:
                    self.close_connection = True
                    return
                status, fields, body = reply
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **fields}.items():
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


def error(status: int, code: str, message: str = "said so", **headers: str) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return status, headers, body
