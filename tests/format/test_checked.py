"""Threads that read the first objects of a process at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# In a fork of a process that has read nothing yet; forks of this one would have.
RACED = """
import json, os, sys, threading
from sparkwal.format.header import CommitHeader, LeaderHeader, _from_document
from sparkwal.errors import InvalidLogError

sys.setswitchinterval(1e-6)
documents = [{"kind": kind.kind, "window": 1000} for kind in (CommitHeader, LeaderHeader)]

def read(number, gate, refused):
    gate.wait()
    try:
        _from_document(documents[number % 2], "test")
    except InvalidLogError:
        refused.append(number)

for _ in range(50):
    child = os.fork()
    if child == 0:
        gate, refused = threading.Barrier(8), []
        threads = [threading.Thread(target=read, args=(n, gate, refused)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        os._exit(0 if len(refused) == 8 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_the_first_headers_are_read_by_threads_at_once() -> None:
    subprocess.run([sys.executable, "-P", "-c", RACED], check=True, timeout=120)
