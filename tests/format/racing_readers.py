"""Reads the first headers of a process by eight threads at once, in fifty forks."""

import os
import sys
import threading

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import CommitHeader, LeaderHeader, _from_document

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
