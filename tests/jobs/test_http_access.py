"""Access to the HTTP job: hosts, origins, tokens and time limits."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender, Log
from sparkwal.cli.exit_codes import Refused
from sparkwal.errors import OptionError
from sparkwal.metrics.hosts import is_loopback
from support.http_access import access, read_tokens
from tests.jobs.http_job import JOB, Job
from tests.jobs.http_job import started_jobs as started_jobs
from tests.store.certificates import HERE, Authority

TOKEN = "0123456789abcdef-token"


def status(access_headers: dict[str, str], **rules: object) -> int:
    token_file = rules.pop("token_file", None)
    assert token_file is None or isinstance(token_file, Path)
    given = access("127.0.0.1", ("wal.example",), ("https://app.example",), token_file)
    refusal = given.refusal(access_headers, needs_token=True)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080",
        "localhost",
        "LOCALHOST:1",
        "[::1]:8080",
        "10.0.0.7:80",
        "wal.example.",
        "collector:1",
    ],
)
def test_a_host_header_with_a_name_of_the_server_is_accepted(host: str) -> None:
    assert status({"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:8080", "", "127.0.0.1.evil.example", "[::1", "[::1]x", "localhost:http"),
        *("evil.example@localhost", "localhost/evil", "localhost\\evil", "localhost#", "a b"),
    ],
)
def test_a_host_header_with_another_name_is_refused(host: str) -> None:
    assert status({"host": host}) == 421


def test_a_body_with_two_lengths_is_refused() -> None:
    lengths = {"content-length": "4", "transfer-encoding": "chunked"}
    assert status({"host": "localhost", **lengths}) == 400


def test_a_page_of_another_origin_is_refused() -> None:
    assert status({"host": "localhost", "origin": "http://evil.example"}) == 403
    assert status({"host": "localhost", "origin": "null"}) == 403
    assert status({"host": "localhost", "origin": "https://app.example"}) == 200


def test_a_request_needs_one_of_the_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\nnewer-{TOKEN}\n")
    local = {"host": "localhost"}
    assert status(local, token_file=file) == 401
    assert status({**local, "authorization": f"Basic {TOKEN}"}, token_file=file) == 401
    assert status({**local, "authorization": f"Bearer {TOKEN}x"}, token_file=file) == 401
    assert status({**local, "authorization": f"bearer {TOKEN}"}, token_file=file) == 200
    assert status({**local, "authorization": f"Bearer newer-{TOKEN}"}, token_file=file) == 200


def test_a_server_that_other_machines_reach_needs_a_token() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    for host in ("0.0.0.0", "::", "10.0.0.7", "wal.example"):
        with pytest.raises(OptionError, match="--token-file"):
            access(host, (), (), None)


@pytest.mark.parametrize("text", ["", "hush\n", f"{TOKEN}\nhush"])
def test_a_token_file_with_a_short_token_is_refused_without_showing_it(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(OptionError, match="16 characters") as error:
        read_tokens(file)
    assert "hush" not in str(error.value) and TOKEN not in str(error.value)


def test_a_token_file_that_others_may_write_is_refused_and_one_that_they_read_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKEN)
    for mode, said in ((0o600, ""), (0o640, ""), (0o644, f"chmod o-rw {file}")):
        file.chmod(mode)
        assert read_tokens(file) == (TOKEN.encode(),)
        assert said in (reported := capsys.readouterr().err) and bool(said) == bool(reported)
    file.chmod(0o666)
    with pytest.raises(Refused, match="may write to it") as refused:
        read_tokens(file)
    assert TOKEN not in reported + str(refused.value)


@pytest.mark.process
def test_pages_of_a_browser_and_strangers_write_nothing(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    job = start("--log", tmp_path / "wal", "--schema", "v long", "--token-file", tokens)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    row = b'{"v": 666}'
    assert job.post(row)[0] == 401
    assert job.post(row, Origin="http://evil.example", **bearer)[0] == 403
    assert job.post(row, Host="evil.example:80", **bearer)[0] == 421
    assert job.get("/metrics")[0] == 401 and job.get("/healthz")[0] == 200
    port = int(job.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /append HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        client.sendall(f"{head}Content-Length: {len(row)}\r\n\r\n".encode() + row)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 415")
    assert job.post(b'[{"v": 1}, {"v": 2}]', "application/json", **bearer)[1]["rows"] == 2
    assert job.stop() == 0 and TOKEN not in job.output
    assert Log(str(tmp_path / "wal")).to_pandas()["v"].tolist() == [1, 2]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import http_ingest
{before}
http_ingest.main()
"""


def idle(port: int, count: int) -> list[socket.socket]:
    """Connections that send nothing. Those that the server has ended are closed."""
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for each in made:
        each.setblocking(False)
    return made


@pytest.mark.process
@pytest.mark.parametrize("tls", [False, True])
def test_idle_connections_of_strangers_leave_room_for_clients_with_a_token(
    start: Callable[..., Job], tmp_path: Path, tls: bool
) -> None:
    script, tokens = tmp_path / "limited.py", tmp_path / "tokens"
    script.write_text(LIMITED.format(before=""))
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    authority = Authority(tmp_path, "ca")
    authority.server(HERE)
    pem = tmp_path / "ca-server.pem"
    files = ("--tls-certificate", pem, "--tls-key", pem) if tls else ()
    job = start(
        *("--log", tmp_path / "wal", "--schema", "v long", "--token-file", tokens, *files),
        script=script,
    )
    port = int(job.url.rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(authority.file)) if tls else None

    def client() -> HTTPConnection:
        if context is None:
            return HTTPConnection("127.0.0.1", port, timeout=60)
        return HTTPSConnection("127.0.0.1", port, timeout=60, context=context)

    def post(to: HTTPConnection) -> int:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        to.request("POST", "/append", b'{"v": 1}', headers)
        answer = to.getresponse()
        answer.read()
        return answer.status

    kept = client()
    assert post(kept) == 200
    opened: list[socket.socket] = []
    for _ in range(6):
        opened += idle(port, 50)
        assert post(kept) == 200
        assert post(client()) == 200
    for each in opened:
        each.close()
    assert job.stop() == 0 and len(job.output) < 1000
    assert len(Log(str(tmp_path / "wal")).to_pandas()) == 13


@pytest.mark.process
def test_a_machine_without_file_descriptors_is_a_passing_error(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "unlimited.py"
    script.write_text(LIMITED.format(before="http_ingest.places = lambda most: most"))
    job = start("--log", tmp_path / "wal", "--schema", "v long", script=script)
    port = int(job.url.rpartition(":")[2])
    opened = idle(port, 200)
    assert job.process.stderr is not None
    job.output += job.process.stderr.readline()
    assert "cannot accept a connection now: Too many open files" in job.output
    for each in opened:
        each.close()
    assert job.post(b'{"v": 1}')[0] == 200
    assert job.stop() == 0
    assert "Traceback" not in job.output and len(job.output) < 5000


@pytest.mark.process
def test_an_answer_without_a_token_has_nothing_of_the_log(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    path = str(tmp_path / "wal")
    job = start("--log", path, "--schema", "v long", "--token-file", tokens)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for unknown in ("/append/", "/metrics/", "//append", "/none", "/%2e%2e/metrics"):
        assert job.get(unknown)[0] == 401
    assert job.get("/append/", **bearer)[0] == 404
    assert json.loads(job.get("/healthz")[1]) == {"status": "ok"}
    assert json.loads(job.get("/healthz", **bearer)[1]) == {"status": "ok", "last_sequence": -1}
    port = int(job.url.rpartition(":")[2])
    for request, answered in (
        ("GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n", 401),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade\r\n", 401),
        ("nonsense\r\n", 400),
    ):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"{request}\r\n".encode())
            assert client.recv(4096).startswith(f"HTTP/1.1 {answered}".encode())
    # The answer does not repeat all of what a client sends.
    status, answer, _ = job.post(b'{"%s": 1}' % (b"z" * 100_000), **bearer)
    assert status == 400 and len(json.dumps(answer)) < 2000
    with Appender(path, pa.schema([("v", pa.int64())]), producer_id="other") as wal:
        wal.append([{"v": 1}]).result()
    assert job.post(b'{"v": 2}', **bearer)[0] == 503
    status, text = job.get("/healthz")
    assert (status, json.loads(text)) == (503, {"status": "stopped"})
    assert path in job.get("/healthz", **bearer)[1]
    assert job.stop() == 1
    # No request made a line.
    assert "upgrade request" not in job.output and "Invalid HTTP" not in job.output


@pytest.mark.process
def test_an_unfinished_body_or_head_gives_its_place_back(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        "import support.http_protocol as protocol\n"
        "protocol.HEAD_SECONDS = 0.3\n"
        "import http_ingest\n"
        "http_ingest.main()\n"
    )
    limits = ("--max-body", 100, "--max-pending", 100, "--body-timeout", 0.3)
    job = start("--log", tmp_path / "wal", "--schema", "v long", *limits, script=script)
    port = int(job.url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port)) as half_a_body,
        socket.create_connection(("127.0.0.1", port)) as half_a_head,
    ):
        half_a_body.sendall(
            b"POST /append HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n" + b" " * 99
        )
        half_a_head.sendall(b"POST /append HTTP/1.1\r\nHost: local")
        assert half_a_body.recv(4096).startswith(b"HTTP/1.1 408")
        assert half_a_head.recv(4096) == b""
    assert job.post(b'{"v": 1}' + b" " * 80)[0] == 200
    assert job.stop() == 0 and "Traceback" not in job.output


@pytest.mark.process
def test_a_listener_for_other_machines_without_a_token_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, str(JOB), "--log", str(tmp_path / "wal"), "--host", "0.0.0.0"],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2 and "--token-file" in refused.stderr
