"""Events: names, fields, types."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import get_type_hints

import sparkwal
from sparkwal import events
from sparkwal.events import Event
from tests.docs.tables import event_kinds
from tests.protocol.query import Query, hints_in

SOURCES = Path(sparkwal.__file__).parent


def test_every_event_is_emitted_somewhere() -> None:
    made = set()
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                made.add(ast.unparse(node.func).rpartition(".")[2])
    assert made >= {kind.__name__ for kind in event_kinds()}


def test_an_event_is_a_line_of_its_name_and_fields() -> None:
    assert str(events.LeaderClaimed("s3://b/p", 3, 2, "me")) == (
        "leader_claimed path=s3://b/p position=3 term=2 leader_id=me"
    )
    assert events.UploadLeftBehind.level == logging.WARNING
    assert events.Durable.level == logging.INFO


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
        for field, kind in get_type_hints(type(event)).items():
            if field not in ("name", "level"):
                assert type(getattr(event, field)) is kind, (event, field)


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
