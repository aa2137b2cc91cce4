"""The output of commands on narrow terminals and on terminals with few characters or codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from tests.cli.logs import COMMAND, ran
from tests.logs import append


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_a_narrow_terminal_gets_all_columns_and_whole_numbers(tmp_path: Path, columns: int) -> None:
    path = str(tmp_path / "log")
    append(path, *range(3))
    narrow = {"COLUMNS": str(columns), "FORCE_COLOR": "1", "TERM": "xterm"}
    for command in (["cost", path], ["show", path, "1"]):
        whole = [line.split() for line in ran(*command).splitlines() if "─" not in line]
        result = CliRunner().invoke(main, command, env=narrow)
        found = " ".join(click.unstyle(result.stdout).split())
        assert "…" not in found
        tables = [line for line in whole if line[:1] in (["start"], ["partition"], ["0"])]
        assert tables and all(" ".join(line) in found for line in tables)


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """The output of a command on a terminal of 80 columns."""
    leader, follower = pty.openpty()
    given = {**os.environ, "PAGER": "cat", "COLUMNS": "80", **environment}
    process = subprocess.Popen([*COMMAND, *arguments], env=given, stdout=follower, stderr=follower)
    os.close(follower)
    found = b""
    try:
        while more := os.read(leader, 65536):
            found += more
    except OSError:
        pass  # on Linux: the last writer closed
    finally:
        os.close(leader)
        process.wait(60)
    return found.decode()


@pytest.mark.process
@pytest.mark.parametrize("command", ["log", "doctor"])
def test_a_terminal_without_escape_codes_gets_none(tmp_path: Path, command: str) -> None:
    path = str(tmp_path / "log")
    append(path, *range(2))
    assert "\x1b" in on_a_terminal(command, path, TERM="xterm")
    assert "\x1b" not in on_a_terminal(command, path, TERM="dumb")
    assert "\x1b" not in on_a_terminal(command, path, TERM="xterm", NO_COLOR="1")


@pytest.mark.process
def test_csv_commands_a_terminal_nothing(tmp_path: Path) -> None:
    path, text = str(tmp_path / "log"), "\x1b]0;title\x07é"
    with sparkwal.Appender(path, pa.schema([(text, pa.string())]), producer_id="p") as wal:
        wal.append([{text: text}])
    command = ("cat", path, "--format", "csv")
    said = on_a_terminal(*command)
    assert said.splitlines() == [json.dumps(text, ensure_ascii=False)] * 2
    # A program gets the text unchanged.
    piped = subprocess.run([*COMMAND, *command], capture_output=True, check=True).stdout
    assert piped.decode() == f'"{text}"\n"{text}"\n'


@pytest.mark.process
def test_a_character_that_the_encoding_lacks_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "lög😀")
    append(path, *range(2))
    for command in ("verify", "cost", "status"):
        done = subprocess.run(
            [*COMMAND, command, path],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        )
        assert done.stdout.isascii() and not done.stderr
    done = subprocess.run(
        [*COMMAND, "status", path, "--json"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode("latin-1"))["url"].endswith("lög😀")


@pytest.mark.process
def test_ctrl_c_twice_ends_a_command_without_a_word() -> None:
    # The second one comes as the first has ended the command.
    program = (
        "import sys\n"
        "import sparkwal.cli as entry\n"
        "from sparkwal.cli import main\n"
        "def stopped(**_):\n"
        "    raise SystemExit(130)\n"
        "class Slow:\n"
        "    def flush(self):\n"
        "        raise KeyboardInterrupt\n"
        "main.main, sys.stderr = stopped, Slow()\n"
        "entry.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
