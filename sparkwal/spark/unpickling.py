"""What Spark pickles to its Python workers: readers, writers and the data source.

`_load` travels with them by value and runs there before anything of sparkwal is imported: an
executor whose Python lacks sparkwal says so in one sentence. It needs nothing but itself.
"""

import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import cloudpickle


def _load(pickled):  # type: ignore[no-untyped-def]  # annotations would travel too
    import pickle

    try:
        kind, state = pickle.loads(pickled)
    except ModuleNotFoundError as error:
        import socket
        import sys

        sys.tracebacklimit = 0  # the worker ends with this error
        raise ModuleNotFoundError(
            f"{error.name} is missing in this executor's Python, {sys.executable} on "
            f"{socket.gethostname()}: pip install sparkwal there, or ship it (--archives)"
        ) from None
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class PickledByValue:
    def __reduce__(self) -> tuple[Any, ...]:
        # cloudpickle also knows classes that have no name in any module.
        what = type(self), self.__getstate__()
        return _load, (cloudpickle.dumps(what),)  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_at_once()


def acknowledge_at_once() -> None:
    """In a worker, before it reads the input of its task: let the kernel acknowledge now.

    Spark sends a task and its first rows in two small writes. Nagle's algorithm holds the second
    back until the first is acknowledged, which the kernel of a receiver that sends nothing delays
    by 40 ms: a third of a small microbatch. Linux only.
    """
    quick, descriptors = getattr(socket, "TCP_QUICKACK", None), Path("/proc/self/fd")
    if quick is None or not descriptors.is_dir():
        return
    # Spark does not show which socket it is; the option does the others no harm.
    for descriptor in map(int, os.listdir(descriptors)):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                    duplicate.setsockopt(socket.IPPROTO_TCP, quick, 1)
