"""`sparkwal report`: the page tells what the records tell, and a real browser shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli.browser import DESKTOP, NAMES, PHONE, Page, a_page, browser
from cli.logs import append, as_flags, opened, ran
from cli.logs import document as printed
from cli.test_cost import query
from history.headers_of import commit, leader
from history.looked import NOW, consumer, lifecycle, looked, many
from reading.collected import collect, move_floor

import sparkwal
from sparkwal.cli.page.page import page
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.history.document import document
from sparkwal.history.looking import Looked
from sparkwal.history.prices import Prices
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions

SCREENS = {"phone": PHONE, "desktop": DESKTOP}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a real browser."""
    path = browser()
    if path is None:
        pytest.skip(f"no browser is on PATH: {', '.join(NAMES)}; apt-get install chromium")
    with a_page(path, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def made(found: Looked, *consumers: Any) -> dict[str, Any]:
    return document(found, Prices(), found.until_ms + 60_000, consumers)


def written(tmp_path: Path, told: dict[str, Any]) -> Path:
    file = tmp_path / "report.html"
    file.write_text(page(told), encoding="utf-8", errors="replace")
    return file


def embedded(file: Path) -> dict[str, Any]:
    found = re.search(r'id="report">(.*?)</script>', file.read_text())
    assert found
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_the_numbers_of_the_page_are_those_of_the_records(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "report.html"
    append(path, range(20))
    append(path, range(10))
    assert str(file) in ran("report", path, "-o", str(file))
    told = embedded(file)
    records = list(sparkwal.Log(path).records())
    commits = [record for record in records if isinstance(record, CommitHeader)]
    assert told["totals"]["commits"] == len(commits)
    assert told["totals"]["rows"] == sum(record.rows for record in commits) == 30
    assert told["totals"]["bytes"] == sum(record.bytes for record in commits)
    assert told["log"]["log_id"] == records[0].log_id
    assert told["log"]["next_position"] == records[-1].position + 1
    assert sum(bucket["commits"] for bucket in told["series"]["buckets"]) == len(commits)
    terms = [record for record in records if record.kind == "leader" and record.reason != "seal"]
    assert [t["position"] for t in told["terms"]["newest"]] == [t.position for t in terms][::-1]
    assert told["cost"]["total"]["requests"] == told["totals"]["requests"]
    assert [each["name"] for each in told["schema"]] == ["v"]
    same = printed("report", path)
    assert same.keys() == told.keys() and same["totals"] == told["totals"]


@pytest.mark.s3
def test_a_log_on_s3_with_a_floor_and_consumers(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    append(path, range(12), **options)
    log = open_log(from_keywords(SourceOptions, path, options))
    move_floor(log, 3)
    collect(log, 3)
    file = tmp_path / "report.html"
    ran("report", path, "-o", str(file), *as_flags(options))
    told = embedded(file)
    assert (told["log"]["floor"], told["range"]["start"]) == (3, 3)
    assert told["lifecycle"]["floor"] == 3
    assert told["stored"]["objects"] == len(log.store.list(log.prefix + "/").entries)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "out" / "report.html"
    append(path, range(1))
    assert "there is no folder" in ran("report", path, "-o", str(file), code=2)
    file.parent.mkdir()
    file.write_text("before")
    assert "no log" in ran("report", str(tmp_path / "none"), "-o", str(file), code=1)
    assert file.read_text() == "before"
    ran("report", path, "-o", str(file))
    assert file.read_text().startswith("<!doctype html>")
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    link = tmp_path / "link.html"
    link.symlink_to(file)
    file.write_text("before")
    ran("report", path, "-o", str(link))
    assert link.is_symlink() and file.read_text() != "before"
    assert "is no file" in ran("report", path, "-o", "/dev/null", code=2)
    assert "-o report.html" in ran("report", path, code=2)


def test_a_damaged_log_has_a_page_up_to_the_damage(tmp_path: Path) -> None:
    path, file = tmp_path / "log", tmp_path / "report.html"
    sink = query(opened(path), tmp_path)
    for batch in range(5):
        sink.microbatch(batch, (batch,))
    damaged = path / "batches" / keys.encode(keys.slot(3, 1000))
    damaged.write_bytes(b"nothing of this")
    assert damaged.name in ran("report", str(path), "-o", str(file), code=1)
    told = embedded(file)
    assert told["totals"]["commits"] == 2 and damaged.name in told["damage"]
    assert "Something is damaged" in file.read_text()


def test_a_damaged_consumer_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    path, file = tmp_path / "log", tmp_path / "report.html"
    append(str(path), range(3))
    (path / "consumers").mkdir()
    (path / "consumers" / "daily").write_bytes(b"nothing of this")
    assert "daily" in ran("report", str(path), "-o", str(file), code=1)
    assert embedded(file)["totals"]["commits"] == 3


def test_a_time_in_which_nothing_was_written(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "report.html"
    append(path, range(3))
    ran("report", path, "-o", str(file), "--since", "2100-01-01")
    told = embedded(file)
    assert (told["totals"]["commits"], told["series"]["buckets"]) == (0, [])
    assert told["stored"]["bytes"] > 0
    assert "Nothing was written in this time" in file.read_text()


def test_the_rows_of_nested_columns_stand_below_them(tmp_path: Path) -> None:
    kind = pa.schema([
        ("a", pa.struct([("b", pa.list_(pa.map_(pa.string(), pa.decimal128(9, 2))))])),
    ])  # fmt: skip
    path = str(tmp_path / "log")
    with sparkwal.Appender(path, kind, producer_id="p"):
        pass
    told = printed("report", path)
    assert [(each["depth"], each["name"], each["type"]) for each in told["schema"]] == [
        (0, "a", "struct"), (1, "b", "array"), (2, "element", "map"), (3, "key", "string"),
        (3, "value", "decimal(9,2)"),
    ]  # fmt: skip
    assert told["totals"]["commits"] == 0


def hostile() -> dict[str, Any]:
    """A log whose every text tries to leave its place."""
    bad = "</script ><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'&\u202e"
    fields = [{"name": bad, "type": "long", "nullable": True, "metadata": {}}]
    records = [
        replace(leader(0, NOW, 1, bad, bad), leader_id=bad, log_id=bad),
        leader(1, NOW + 5000, 2, "half \ud800 of a character", "]]>-->"),
        replace(commit(2, NOW + 9000, put_ms=3.0, objects=(9,), term=2), leader_id=bad),
    ]
    found = looked(records, NOW + 9000, url=f"s3://bucket/{bad}", damage=bad,
                   spark_schema=json.dumps({"type": "struct", "fields": fields}))  # fmt: skip
    state = lifecycle(1, 0)
    assert state.target is not None
    found = replace(
        found, chain=replace(state, host=bad, target=replace(state.target, table=bad, keys=(bad,)))
    )
    return made(found, replace(consumer("c", 1, 2), host=bad, name=bad))


def one_record() -> dict[str, Any]:
    return made(looked([commit(0, NOW, put_ms=5.0, objects=(100,))], NOW))


def not_numbers() -> dict[str, Any]:
    nan = [
        commit(n, NOW + n * 60_000, objects=(1,), metrics={"put_ms": float("nan"), "in_flight": 1})
        for n in range(100)
    ]
    return made(looked(nan, NOW + 7_200_000))


def beyond_the_calendar() -> dict[str, Any]:
    return made(looked([commit(0, NOW), commit(1, 2**63 - 1)], NOW))


def a_life() -> dict[str, Any]:
    records = many(6000)
    found = looked(records, records[-1].timestamp_ms + 60_000, chain=lifecycle(5000, 3000), floor=0)
    return made(found, consumer("daily", 5600, 400), consumer("old", 100, 5900, live=False))


def hundred_thousand() -> dict[str, Any]:
    records = many(100_000)
    return made(looked(records, records[-1].timestamp_ms + 60_000))


CASES = {
    "a life": a_life,
    "100,000 records": hundred_thousand,
    "hostile texts": hostile,
    "one record": one_record,
    "a leader record alone": lambda: made(looked([leader(0, NOW)], NOW)),
    "metrics that are no numbers": not_numbers,
    "a time beyond the calendar": beyond_the_calendar,
}


@pytest.mark.parametrize("name", CASES)
def test_a_browser_shows_it(name: str, tab: Page, tmp_path: Path) -> None:
    told = CASES[name]()
    file = written(tmp_path, told)
    assert file.stat().st_size < 600_000
    for screen in SCREENS.values():
        tab.problems.clear()
        tab.requested.clear()
        tab.show(file, screen, dark=screen == DESKTOP)
        assert tab.value("document.documentElement.dataset.ready") == "1"
        assert tab.problems == []
        assert tab.requested == [file.as_uri()]
        # Nothing stands out to the right.
        assert tab.value("innerWidth") == screen[0]
        assert tab.value("document.documentElement.scrollWidth") <= screen[0]
        text = tab.value("document.body.innerText")
        for figure in (told["totals"]["commits"], told["log"]["next_position"]):
            assert f"{figure:,}" in text
        assert tab.value("JSON.parse(document.getElementById('report').textContent).totals.rows") \
            == told["totals"]["rows"]  # fmt: skip
        if told["totals"]["commits"]:
            drawn = tab.value("document.querySelector('#chart-commits .bar').getAttribute('d')")
            busy = [bucket for bucket in told["series"]["buckets"] if bucket["commits"]]
            assert drawn.count("M") == len(busy)
            assert tab.value("document.querySelector('#chart-commits .bar').getBBox().height") > 50
        if told["totals"]["put_ms"]["count"]:
            lines = tab.value(
                "[...document.querySelectorAll('#chart-latency .line')]"
                ".map(line => (line.getAttribute('d').match(/[ML]/g) || []).length)"
            )
            there = [b for b in told["series"]["buckets"] if b["put_p50"] is not None]
            assert lines == [len(there)] * 2
        else:
            assert tab.value("document.querySelector('#chart-latency')") is None


def test_the_pointer_tells_the_exact_numbers(tab: Page, tmp_path: Path) -> None:
    told = a_life()
    file = written(tmp_path, told)
    tab.show(file, PHONE)
    assert tab.value("document.getElementById('tip').hidden") is True
    tab.hover("#chart-commits .area", 0.001)
    first = told["series"]["buckets"][0]
    shown = tab.value("document.getElementById('tip').innerText")
    assert shown.endswith(f"\n{first['commits']}")
    assert tab.value("document.getElementById('tip').getBoundingClientRect().left") >= 0


def test_light_and_dark_are_two_looks_that_can_be_read(tab: Page, tmp_path: Path) -> None:
    file = written(tmp_path, one_record())
    looks = []
    for dark in (False, True):
        tab.show(file, PHONE, dark)
        looks.append(tab.value(
            "['color', 'backgroundColor'].map(x => getComputedStyle(document.body)[x]"
            ".match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0))"
        ))  # fmt: skip
    (ink, paper), (dark_ink, dark_paper) = looks
    assert paper - ink > 500 and dark_ink - dark_paper > 500


def test_hostile_texts_are_shown_and_do_nothing(tab: Page, tmp_path: Path) -> None:
    file = written(tmp_path, hostile())
    tab.show(file, DESKTOP)
    assert tab.value("document.title").endswith("sparkwal report")
    assert tab.value("document.images.length") == 0
    assert tab.value("document.scripts.length") == 3
    assert "<img src=x" in tab.value("document.body.innerText")
    assert "\u202e" not in file.read_text()


def test_the_policy_holds_what_would_be_loaded(tab: Page, tmp_path: Path) -> None:
    """The page's own policy, and not its content alone, keeps it from the network."""
    file = written(tmp_path, one_record())
    text = file.read_text().replace("</main>", "<img src='http://127.0.0.1:9/x.png'></main>")
    file.write_text(text.replace("<footer>", "<script>document.title='ran'</script><footer>"))
    tab.problems.clear()
    tab.requested.clear()
    tab.show(file, DESKTOP)
    assert tab.value("document.title") != "ran"
    # What the policy refuses is asked of nobody.
    assert len([each for each in tab.problems if "Content Security Policy" in each]) >= 2
    tab.problems.clear()
