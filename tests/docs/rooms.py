"""The picture of the code: rooms on floors, and the way of a row through their modules.

python -m tests.docs.rooms     draws sparkwal/docs/rooms.svg from tests/docs/rooms.txt
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from tests.docs.pages import ROOT

SOURCE = Path(__file__).with_name("rooms.txt")
PICTURE = ROOT / "sparkwal/docs/rooms.svg"

LEFT = 150
COLUMN = 214
STEP = 38
BOX = 32
INDENT = 12
TOP = 64

STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:#1f2933}
.bg{fill:#ffffff;stroke:#d5dbe1}.odd{fill:#f5f7fa}
.title{font-size:13px;font-weight:600}.room{font-size:12px;font-weight:600}
.note{font-size:10px;fill:#52606d}
.module{font-size:10.5px;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.line{fill:none;stroke:#7b8794;stroke-width:1.2}
.write{fill:#d6e9f8;stroke:#5b9bd0}.append{fill:#fbe3c0;stroke:#d99a3a}
.read{fill:#e6f4ea;stroke:#6fae82}.compact{fill:#efe3f7;stroke:#a67cc5}
@media (prefers-color-scheme:dark){
text{fill:#e4e7eb}.note{fill:#b3bdc7}
.bg{fill:#14191f;stroke:#3a444e}.odd{fill:#1b222a}.line{stroke:#8a96a3}
.write{fill:#1d3f5c}.append{fill:#5a4017}.read{fill:#1e4229}.compact{fill:#412a52}
}"""


@dataclass(frozen=True)
class Step:
    """A module on the way of a row; `depth` is its indentation."""

    module: str
    note: str
    depth: int


@dataclass
class Way:
    """One operation on rows, and the modules that carry it out."""

    name: str
    title: str
    steps: list[Step] = field(default_factory=list)
    # Pairs of a module and one that it imports.
    imports: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Picture:
    """Rooms on floors, and ways through them."""

    floors: list[list[str]] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)


def parse(text: str) -> Picture:
    """The floors and ways of the source."""
    picture = Picture()
    above: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("floor"):
            picture.floors.append(line.split()[1:])
        elif line.startswith("way"):
            name, title = line.removeprefix("way").strip().split(": ")
            picture.ways.append(Way(name, title))
        else:
            way = picture.ways[-1]
            depth = (len(line) - len(line.lstrip())) // 4 - 1
            module, _, note = line.strip().partition(" ")
            above[depth:] = [module]
            if depth:
                way.imports.append((above[depth - 1], module))
            # A module without a note is described at another place.
            if note:
                way.steps.append(Step(module, note.strip(), depth))
    return picture


def floor_of(picture: Picture, module: str) -> int:
    """The floor of a module's room, counted from the top."""
    room = module.partition(".")[0]
    return next(number for number, rooms in enumerate(picture.floors) if room in rooms)


def draw(picture: Picture) -> str:
    """The picture as SVG."""
    counts = [
        [sum(floor_of(picture, step.module) == floor for step in way.steps) for way in picture.ways]
        for floor in range(len(picture.floors))
    ]
    rooms = [len(rooms) * 20 + 14 for rooms in picture.floors]
    heights = [max(room, STEP * max(count) + 8) for room, count in zip(rooms, counts, strict=True)]
    tops = [TOP]
    for height in heights:
        tops.append(tops[-1] + height)
    size = (LEFT + COLUMN * len(picture.ways), tops[-1] + 12)
    return "\n".join([*_background(picture, tops, size), *_ways(picture, tops), "</svg>", ""])


def _background(picture: Picture, tops: list[int], size: tuple[int, int]) -> Iterator[str]:
    width, height = size
    title = "The rooms of the code, and the way of a row through them"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    yield f'width="{width}" height="{height}" role="img" aria-labelledby="title">'
    yield f'<title id="title">{title}</title>'
    yield f"<style>\n{STYLE}\n</style>"
    yield f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" class="bg"/>'
    yield '<text x="14" y="28" class="title">rooms</text>'
    yield '<text x="14" y="46" class="note">import only downwards</text>'
    for number, (rooms, (top, bottom)) in enumerate(
        zip(picture.floors, pairwise(tops), strict=True)
    ):
        if number % 2 == 0:
            yield f'<rect x="1" y="{top}" width="{width - 2}" height="{bottom - top}" class="odd"/>'
        for row, room in enumerate(rooms):
            yield f'<text x="14" y="{top + 22 + 20 * row}" class="room">{escape(room)}</text>'


def _ways(picture: Picture, tops: list[int]) -> Iterator[str]:
    for column, way in enumerate(picture.ways):
        left = LEFT + COLUMN * column
        yield f'<text x="{left}" y="28" class="title">{escape(way.name)}</text>'
        yield f'<text x="{left}" y="46" class="note">{escape(way.title)}</text>'
        used = dict.fromkeys(range(len(picture.floors)), 0)
        corners: dict[str, tuple[int, int]] = {}
        for step in way.steps:
            floor = floor_of(picture, step.module)
            corners[step.module] = left + INDENT * step.depth, tops[floor] + 6 + STEP * used[floor]
            used[floor] += 1
        # Lines first: boxes cover them.
        for above, below in way.imports:
            (x, y), (x_below, y_below) = corners[above], corners[below]
            middle = y_below + BOX // 2
            yield f'<path d="M{x + 5} {y + BOX} V{middle} H{x_below}" class="line"/>'
        for step in way.steps:
            x, y = corners[step.module]
            wide = COLUMN - 10 - INDENT * step.depth
            name = escape(step.module)
            yield f'<rect x="{x}" y="{y}" width="{wide}" height="{BOX}" rx="4" class="{way.name}"/>'
            yield f'<text x="{x + 8}" y="{y + 14}" class="module">{name}</text>'
            yield f'<text x="{x + 8}" y="{y + 26}" class="note">{escape(step.note)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(parse(SOURCE.read_text())))
