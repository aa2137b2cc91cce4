"""An executor whose Python lacks sparkwal says so in one sentence.

Spark pickles readers, writers and the data source to its executors. `_load` travels with them by
value and runs there before anything of sparkwal is imported: it needs nothing but itself.
"""

from __future__ import annotations

import sys
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
