"""The base class of readers, writers and the data source, which Spark pickles for its workers.

The pickle contains the code of `_load`, which the worker runs before it imports sparkwal. So a
worker whose Python lacks sparkwal reports that in one sentence. `_load` must not use names of this
module.
"""

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import cloudpickle


def _load(pickled):  # type: ignore[no-untyped-def]  # annotations would be pickled too
    import pickle

    try:
        kind, state = pickle.loads(pickled)
    except ModuleNotFoundError as error:
        import socket
        import sys

        sys.tracebacklimit = 0  # the worker ends with this error
        raise ModuleNotFoundError(
            f"{error.name} is missing in this executor's Python, {sys.executable} on "
            f"{socket.gethostname()}: install the same sparkwal there, or ship it (--archives)"
        ) from None
    instance = kind.__new__(kind)
    instance.__setstate__(state)
    return instance


# Less than boto3's client has, and some times what one task leaves.
_MANY_OBJECTS = 10_000

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class PickledByValue:
    """Pickles its class and state for `_load`."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Unlike pickle, cloudpickle takes a class that no module names, as of `with_parallelism`.
        class_and_state = (type(self), self.__getstate__())
        return _load, (cloudpickle.dumps(class_and_state),)  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_at_once()
        shorten_collections()


def acknowledge_at_once() -> None:
    """In a worker, before it reads the rows of its task: let the kernel acknowledge at once.

    Spark sends a task and its first rows in two small writes. Nagle's algorithm delays the second
    write until the first is acknowledged, and the receiving kernel delays that acknowledgement by
    40 ms, a third of a small microbatch. Only Linux has the option.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    descriptors = Path("/proc/self/fd")
    if quick is None or not descriptors.is_dir():
        return
    # Spark hides its socket, so set the option on all sockets; it does not harm the others.
    for descriptor in map(int, os.listdir(descriptors)):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                    duplicate.setsockopt(socket.IPPROTO_TCP, quick, 1)


def shorten_collections() -> None:
    """In a worker: let the garbage collector pass over what is already loaded.

    Spark collects all garbage of a worker after each of its tasks, four times in a microbatch. With
    the objects of pyspark, pyarrow and boto3 that takes 20 to 40 ms of CPU, while the next step of
    the microbatch waits for the same cores. Few of the objects at the beginning of a task are
    garbage, because the last collection is just over. So do this only when many are new: a worker
    keeps the garbage of a few tasks at most.
    """
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.freeze()
