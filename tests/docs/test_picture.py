"""The picture of the code shows what the imports say."""

from __future__ import annotations

from tests.docs.rooms import PICTURE, SOURCE, draw, floor_of, parse
from tests.test_rooms import every, room

PARSED = parse(SOURCE.read_text())
# It only starts the command.
LEFT_OUT = {"__main__"}


def test_each_room_is_on_one_floor() -> None:
    rooms = sorted(name for floor in PARSED.floors for name in floor)
    assert rooms == sorted({room(x.source) for x in every()} - LEFT_OUT)


def test_a_room_imports_only_rooms_on_floors_below() -> None:
    wrong = [
        str(x)
        for x in every()
        if x.ours and room(x.source) not in LEFT_OUT and room(x.source) != room(x.module)
        if floor_of(PARSED, x.module) <= floor_of(PARSED, x.source)
    ]
    assert wrong == []


def test_each_step_of_a_way_imports_the_next() -> None:
    imports = {(x.source, x.module) for x in every() if x.ours}
    for way in PARSED.ways:
        assert [pair for pair in way.imports if pair not in imports] == []


def test_the_picture_is_drawn_from_its_source() -> None:
    assert PICTURE.read_text() == draw(PARSED), "run python -m tests.docs.rooms"
