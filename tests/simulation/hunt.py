"""Searches one configuration until a promise breaks: exit 0 and the trace if one does, else 1."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from . import test_journals
from .configurations import exhaustive, large
from .journal_runs import Run
from .journal_shapes import SHAPES, Chance
from .oracle import Violation


def main(where: str) -> int:
    if where in SHAPES:
        return _told(lambda: _run_journals(where))
    if where.startswith("test_"):
        return _told(getattr(test_journals, where))
    configuration = {**exhaustive(), **large()}[where]
    # Several short searches from different ends, since one can get lost in a harmless
    # corner, and then long ones.
    for seed, states in ((1, 4_000), (2, 4_000), (3, 4_000), (0, 200_000), (4, 200_000)):
        try:
            configuration.explore(states, random.Random(seed))
        except RuntimeError:
            continue  # that many states without a flaw: try another corner
        except Violation as violation:
            print(violation)
            return 0
        except Exception as error:
            # Code that falls over on what a mutation left has been caught too.
            print(f"{type(error).__name__}: {error}")
            return 0
    return 1


def _run_journals(where: str) -> None:
    for seed in range(300):
        Run(seed, SHAPES[where], Chance()).run()


def _told(run: Callable[[], None]) -> int:
    try:
        run()
    except BaseException as error:  # what pytest raises is no Exception
        print(f"{type(error).__name__}: {error}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
