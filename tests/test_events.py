"""The events are what their table says: names, fields, types."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkwal
from sparkwal import events
from sparkwal.events import KINDS, Event

from .protocol.query import Query, hints_in

SOURCES = Path(sparkwal.__file__).parent
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    forget = events.subscribe(found.append)
    yield found
    forget()


def test_every_emit_names_a_known_event_with_exactly_its_fields() -> None:
    emitted = set()
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("events.emit", "self._subscribers.publish")
                and isinstance(node.args[0], ast.Constant)
            ):
                name = str(node.args[0].value)
                assert {k.arg for k in node.keywords} == {f for f, _ in KINDS[name].fields}, name
                emitted.add(name)
    # Told to one subscriber alone, by its own queue.
    assert emitted >= KINDS.keys() - {"missed"}


def test_the_events_of_two_microbatches_have_their_types(seen: list[Event], tmp_path: Path) -> None:
    from sparkwal.testing.memory import MemoryStore

    query = Query(MemoryStore(), hints_in(tmp_path))
    query.microbatch(0, (1,))
    query.microbatch(1, (2,))
    query.restarted().microbatch(1, (2,))
    names = [event.name for event in seen]
    first = ["recovered", "leader_claimed", "planned", "durable"]
    again = ["recovered", "leader_claimed", "planned", "skipped_replay"]
    assert names == [*first, "planned", "durable", *again]
    for event in seen:
        assert {k: type(v) for k, v in event.fields.items()} == dict(KINDS[event.name].fields)


def test_a_failing_subscriber_breaks_nothing(tmp_path: Path) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("mine")

    from sparkwal.testing.memory import MemoryStore

    forget = events.subscribe(fail)
    try:
        assert Query(MemoryStore(), hints_in(tmp_path)).microbatch(0, (1,)) == 1
    finally:
        forget()


def test_the_library_configures_no_logging() -> None:
    assert not logging.getLogger("sparkwal").handlers
    assert logging.getLogger("sparkwal").level == logging.NOTSET


def test_the_readme_lists_every_event() -> None:
    text = README.read_text()
    for name, kind in KINDS.items():
        assert f"| `{name}` |" in text, name
        for field, _ in kind.fields:
            assert f"`{field}`" in text, (name, field)
