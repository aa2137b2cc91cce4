"""Searches one configuration with each mutation until a rule breaks.

    python -m tests.simulation.hunt FOLDER [NAME…]

Each mutation gets a separate process, a fork of one that has imported the modules that no mutation
changes. It writes the violation into FOLDER, to a file with the mutation's number. Without a
violation it writes no file.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from tests.simulation.lifecycle_mutations import ICEBERG_RUNS, TABLE_RUNS
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS

_ROOM = __package__
_AT_ONCE = 2


class _Broken(SourceFileLoader):
    """Loads a module that a mutation breaks; Python's cache of bytecode has no part in it."""

    edits: Sequence[tuple[str, str]]

    def get_code(self, fullname: str) -> Any:
        text = Path(self.path).read_text()
        for old, new in self.edits:
            assert old in text, f"{self.path} no longer has {old!r}"
            text = text.replace(old, new)
        return self.source_to_code(text.encode(), self.path)


class _Finder(MetaPathFinder):
    """Finds modules where Python does; `found` is whether the broken one was among them.

    Args:
        file: the file of the broken module.
        edits: the edits, as (old, new).
    """

    def __init__(self, file: str, *edits: tuple[str, str]) -> None:
        ours = file.startswith("simulation/")
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._name = f"{'tests' if ours else 'sparkwal'}.{name}"
        self._edits, self.found = edits, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        loader = _Broken(fullname, spec.origin)
        loader.edits, self.found = self._edits, True
        spec.loader = loader
        return spec


def _finders(mutation: Mutation) -> list[_Finder]:
    also = [mutation.also] if mutation.also else []
    finders = [_Finder(mutation.file, (mutation.old, mutation.new), *also)]
    if mutation.elsewhere:
        file, old, new = mutation.elsewhere
        finders.append(_Finder(file, (old, new)))
    return finders


def _hunt(mutation: Mutation) -> str | None:
    """The result of the search."""
    finders = _finders(mutation)
    sys.meta_path[:0] = finders
    journals = importlib.import_module(f"{_ROOM}.test_journals")
    shapes = importlib.import_module(f"{_ROOM}.journal_shapes")
    configurations = importlib.import_module(f"{_ROOM}.configurations")
    states = importlib.import_module("tests.checkpoints.state_runs")
    asking = importlib.import_module(f"{_ROOM}.asking")
    assert all(finder.found for finder in finders), f"no search imports {mutation.file}"
    if mutation.where in shapes.SHAPES:
        return _failure(lambda: _run_journals(mutation.where))
    if mutation.where == states.RUNS:
        return _failure(states.run_many)
    if mutation.where == asking.RUNS:
        return _failure(asking.run_many)
    if mutation.where == TABLE_RUNS:
        runs = importlib.import_module("tests.lifecycle.table_runs")
        return _failure(runs.run_many)
    if mutation.where == ICEBERG_RUNS:
        runs = importlib.import_module("tests.lifecycle.iceberg_runs")
        return _failure(runs.run_many)
    if mutation.where.startswith("test_"):
        return _failure(getattr(journals, mutation.where))
    searched = {**configurations.exhaustive(), **configurations.large()}[mutation.where]
    # Several short searches from different ends, since one can get lost in a harmless
    # corner, and then long ones.
    for seed, states in ((1, 4_000), (2, 4_000), (3, 4_000), (0, 200_000), (4, 200_000)):
        try:
            searched.explore(states, random.Random(seed))
        except RuntimeError:
            continue  # that many states without a flaw: try another corner
        except Exception as error:
            # Code that falls over on what a mutation left has been caught too.
            return f"{type(error).__name__}: {error}"
    return None


def _run_journals(shape: str) -> None:
    from tests.simulation.journal_runs import Run
    from tests.simulation.journal_shapes import SHAPES, Chance

    for seed in range(300):
        Run(seed, SHAPES[shape], Chance()).run()


def _failure(run: Callable[[], None]) -> str | None:
    try:
        run()
    # The exceptions of pytest do not derive from Exception.
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def _fork(number: int, folder: Path) -> None:
    if os.fork():
        return
    try:
        if (found := _hunt(MUTATIONS[number])) is not None:
            (folder / str(number)).write_text(found)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def main(folder: Path, names: Sequence[str]) -> None:
    importlib.import_module(f"{_ROOM}.test_journals")
    importlib.import_module(f"{_ROOM}.configurations")
    importlib.import_module("tests.checkpoints.state_runs")
    for name in list(sys.modules):
        if name.partition(".")[0] in ("sparkwal", "tests", "journal"):
            del sys.modules[name]
    running = 0
    for number, mutation in enumerate(MUTATIONS):
        if names and mutation.name not in names:
            continue
        if running == _AT_ONCE:
            os.wait()
            running -= 1
        _fork(number, folder)
        running += 1
    while running:
        os.wait()
        running -= 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
