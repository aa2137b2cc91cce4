"""A test without a marker starts no process; a fixture brings its marker with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import multiprocessing, os, subprocess, sys
import pytest

@pytest.fixture
def ministack_url():
    return subprocess.run([sys.executable, "-V"], check=True)

def test_a_program():
    subprocess.run([sys.executable, "-c", "", "hush"])

def test_a_fork():
    os.fork()

def test_a_spawn():
    multiprocessing.get_context("spawn").Process(target=print).start()

def test_swallowed():
    try:
        subprocess.run([sys.executable])
    except OSError:
        pass

def test_nothing():
    pass

def test_a_server(ministack_url):
    pass

@pytest.mark.process
def test_marked():
    subprocess.run([sys.executable, "-V"], check=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("chosen", "outcome"),
    [("not (s3 or process)", "4 failed, 1 passed"), ("s3", "1 passed"), ("process", "1 passed")],
)
def test_a_test_that_starts_a_process_needs_a_marker(
    tmp_path: Path, chosen: str, outcome: str
) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    s3:\n    process:\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.sizes", "-q", "-m", chosen]
    ran = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert outcome in ran.stdout, ran.stdout + ran.stderr
    assert ("starts a process: " in ran.stdout) == ("failed" in outcome)
    assert "hush" not in ran.stdout.partition("short test summary")[2]


@pytest.mark.process
def test_processes_of_a_run_in_the_background_take_ctrl_c() -> None:
    """Such a run begins with SIGINT ignored, and so would all that its tests start."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"
    ignored = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ignored += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    for begins, takes in (("", "False\n"), ("import tests.conftest; ", "True\n")):
        ran = subprocess.run(
            [sys.executable, "-c", ignored, "-c", begins + start],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert (ran.stdout, ran.stderr) == (takes, "")
