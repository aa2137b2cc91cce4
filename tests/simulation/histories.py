"""The state of a process after the answers that it got."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.simulation.machine import Machine, Process
from tests.simulation.world import Call

# Processes kept as they stand, so that the next answer needs no run from the start.
_KEPT = 8_000


class ProcessState(NamedTuple):
    """The state of a process: how it ended, if it did, and the calls of its threads."""

    outcome: str | None
    calls: tuple[tuple[int, Call], ...]


class Histories:
    """Histories of answers as small numbers, and where each brings a process."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._ids: dict[tuple[int, int, Any], int] = {}
        self._last: list[tuple[int, int, Any]] = [(-1, -1, None)]
        self._known: dict[tuple[int, int], ProcessState] = {}
        self._kept: OrderedDict[tuple[int, int], Machine] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def after(self, history: int, thread: int, answer: Any) -> int:
        token = (history, thread, _token(answer))
        if token not in self._ids:
            self._ids[token] = len(self._last)
            self._last.append((history, thread, answer))
        return self._ids[token]

    def where(self, process: int, history: int) -> ProcessState:
        """The state of a process after its answers so far."""
        known = self._known.get((process, history))
        if known is None:
            machine = self._machine(process, history)
            known = ProcessState(machine.outcome, tuple(sorted(machine.calls.items())))
            self._known[process, history] = known
            self._kept[process, history] = machine
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)[1].close()
        return known

    def _machine(self, process: int, history: int) -> Machine:
        given: list[tuple[int, Any]] = []
        machine = None
        while history and machine is None:
            history, thread, answer = self._last[history]
            given.append((thread, answer))
            machine = self._kept.pop((process, history), None)
        machine = machine or Machine(self._processes[process])
        for thread, answer in reversed(given):
            machine.answer(thread, answer)
        return machine

    def close(self) -> None:
        for machine in self._kept.values():
            machine.close()


def _token(answer: Any) -> Any:
    if isinstance(answer, (bytes, bool, int, str, tuple)) or answer is None:
        try:
            hash(answer)
        except TypeError:
            return repr(answer)
        return (type(answer).__name__, answer)
    return (type(answer).__name__, repr(answer))
