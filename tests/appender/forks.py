"""The calls that a forked copy of an appender refuses."""

from __future__ import annotations

import os
import signal

from sparkwal import Appender
from sparkwal.appender.appender import Ticket
from sparkwal.errors import OptionError
from tests.logs import rows


def is_refused(wal: Appender, ticket: Ticket) -> bool:
    """Whether a fork may use neither, and learns at once that it is one."""
    tries = [
        lambda: wal.append(rows(2)),
        wal.flush,
        wal.close,
        ticket.result,
        ticket.done,
        lambda: ticket.when_done(lambda: None),
        lambda: wal.wait_room(1),
    ]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            said = 0
            for act in tries:
                try:
                    act()
                except OptionError as error:
                    said += f"this is its fork {os.getpid()}" in str(error)
            code = 0 if said == len(tries) else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
