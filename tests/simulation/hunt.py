"""Searches configurations until a promise breaks: exit 0 and the trace if one does, else 1."""

from __future__ import annotations

import sys

from sparkwal.testing.simulation.explore import explore
from sparkwal.testing.simulation.oracle import Violation

from .configurations import exhaustive, large

# Small ones first; the rest adds nothing that the mutations need.
ORDER = [
    "one life, two batches, two partitions, every fault twice",
    "two lives of one query, every fault",
    "a straggling task behind two lives",
    "two lives in one application, a crash",
    "a sleeper behind a collector",
    "two queries and a reader",
    "an appender and a sink",
    "two appenders and a reader in the middle",
    "three appenders, the second only leads",
    "two appenders, two in flight, a fault",
]


def main() -> int:
    configurations = {**exhaustive(), **large()}
    for name in ORDER:
        processes, budget = configurations[name]
        try:
            explore(processes, budget)
        except Violation as violation:
            print(f"{name}: {violation}")
            return 0
        except Exception as error:
            # Code that falls over on what a mutation left behind has been caught too.
            print(f"{name}: {type(error).__name__}: {error}")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
