"""How the command ends when a person or a pipe ends it, and how a shell completes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwal.cli.main import COMMANDS
from tests.cli.logs import COMMAND
from tests.logs import append


@pytest.mark.process
def test_a_closed_pipe_ends_each_command_quietly(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(2))
    commands = [
        ["--help"],
        ["status", path],
        ["log", path],
        ["log", path, "--json"],
        ["show", path, "1"],
        ["at", path, "1h"],
        ["consumers", path],
        ["verify", path],
        ["collect", path],
        ["checkpoint", path, "orders", "--to", str(tmp_path / "ck")],
    ]
    reading, writing = os.pipe()
    os.close(reading)
    processes = [
        subprocess.Popen([*COMMAND, *each], stdout=writing, stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    os.close(writing)
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    # A checkpoint command reports before its output ends.
    assert ended == [("", 141)] * len(commands)


@pytest.mark.process
def test_a_full_disk_for_the_output_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(2))
    commands = [
        ["--help"],
        ["status", path],
        ["log", path, "--json"],
        ["cat", path, "--json"],
        ["cat", path, "--format", "csv"],
        ["cat", path, "--format", "arrow"],
        ["tail", path, "-f"],
        ["report", path, "--json"],
        ["cost", path],
    ]
    with open("/dev/full", "wb") as full:
        processes = [
            subprocess.Popen([*COMMAND, *each], stdout=full, stderr=subprocess.PIPE, text=True)
            for each in commands
        ]
    ended = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    said = "Error: the output could not be written: No space left on device\n"
    assert ended == [(said, 1)] * len(commands)


@pytest.mark.process
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_that_waits(tmp_path: Path, signum: int, code: int) -> None:
    append(str(tmp_path / "log"), *range(2))
    process = subprocess.Popen(
        [*COMMAND, "log", str(tmp_path / "log"), "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signum)
    assert process.communicate(timeout=60)[1] == "" and process.returncode == code


# Python ignores what a signal's handler raises there.
INSIDE_A_DEL = """
import signal, sys, time
from sparkwal.cli.exit_codes import handle_signals

class Last:
    def __del__(self):
        signal.raise_signal(int(sys.argv[1]))

handle_signals()
try:
    Last()
    while True:
        time.sleep(0.01)
except KeyboardInterrupt as error:
    print(type(error).__name__)
"""


@pytest.mark.process
@pytest.mark.parametrize(("signum", "raised"), [(2, "KeyboardInterrupt"), (15, "Terminated")])
def test_a_signal_inside_a_del_ends_the_command_too(signum: int, raised: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INSIDE_A_DEL, str(signum)], capture_output=True, timeout=60
    )
    assert (ended.stdout.decode(), ended.stderr) == (f"{raised}\n", b"")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    def completed(*words: str) -> str:
        environment = {
            **os.environ,
            "_SPARKWAL_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": " ".join(["sparkwal", *words]),
            "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
        }
        return subprocess.run(
            [sys.executable, "-c", "from sparkwal.cli import run; run()"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert all(name in completed("") for name in COMMANDS)
    assert "status" in completed("sta") and "--json" in completed("status", "--js")
    source = subprocess.run(
        [sys.executable, "-c", "from sparkwal.cli import run; run()"],
        env={**os.environ, "_SPARKWAL_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "_SPARKWAL_COMPLETE" in source
