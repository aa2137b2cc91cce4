"""`sparkwal report`: the page shows what the records hold, and does nothing else."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from reading.collected import collect, move_floor

import sparkwal
from sparkwal.cli.report_page import page
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from tests.cli.logs import as_flags, opened, ran, write_long
from tests.cli.logs import document as printed
from tests.cli.test_cost import query
from tests.consumers import consumer, publish
from tests.logs import append

pytestmark = pytest.mark.long


def embedded(file: Path) -> dict[str, Any]:
    found = re.search(r'id="report">(.*?)</script>', file.read_text())
    assert found
    reported: dict[str, Any] = json.loads(found[1])
    return reported


def test_the_numbers_of_the_page_are_those_of_the_records(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "report.html"
    append(path, *range(20))
    append(path, *range(10))
    assert str(file) in ran("report", path, "-o", str(file))
    reported = embedded(file)
    records = list(sparkwal.Log(path).records())
    commits = [record for record in records if isinstance(record, CommitHeader)]
    assert reported["totals"]["commits"] == len(commits)
    assert reported["totals"]["rows"] == sum(record.rows for record in commits) == 30
    assert reported["totals"]["bytes"] == sum(record.bytes for record in commits)
    assert reported["log"]["log_id"] == records[0].log_id
    assert reported["log"]["next_position"] == records[-1].position + 1
    assert sum(bucket["commits"] for bucket in reported["series"]["buckets"]) == len(commits)
    terms = [record for record in records if record.kind == "leader" and record.reason != "seal"]
    assert [t["position"] for t in reported["terms"]["newest"]] == [t.position for t in terms][::-1]
    assert reported["cost"]["total"]["requests"] == reported["totals"]["requests"]
    assert [each["name"] for each in reported["schema"]] == ["v"]
    same = printed("report", path)
    assert same.keys() == reported.keys() and same["totals"] == reported["totals"]


def test_the_page_of_a_log_on_s3_begins_at_its_floor(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    append(path, *range(12), **options)
    log = open_log(from_keywords(SourceOptions, path, options))
    move_floor(log, 3)
    collect(log, 3)
    file = tmp_path / "report.html"
    ran("report", path, "-o", str(file), *as_flags(options))
    reported = embedded(file)
    assert (reported["log"]["floor"], reported["range"]["start"]) == (3, 3)
    assert reported["lifecycle"]["floor"] == 3
    assert reported["stored"]["objects"] == len(log.store.list(log.prefix + "/").entries)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "out" / "report.html"
    append(path, *range(1))
    assert "No such file" in ran("report", path, "-o", str(file), code=2)
    file.parent.mkdir()
    file.write_text("before")
    assert "no log" in ran("report", str(tmp_path / "none"), "-o", str(file), code=2)
    assert file.read_text() == "before"
    ran("report", path, "-o", str(file))
    assert file.read_text().startswith("<!doctype html>")
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    link = tmp_path / "link.html"
    link.symlink_to(file)
    file.write_text("before")
    ran("report", path, "-o", str(link))
    assert link.is_symlink() and file.read_text() != "before"
    assert "-o report.html" in ran("report", path, code=2)


def test_a_damaged_log_has_a_page_of_what_is_intact(tmp_path: Path) -> None:
    path, file = tmp_path / "log", tmp_path / "report.html"
    sink = query(opened(path), tmp_path)
    for batch in range(5):
        sink.microbatch(batch, (batch,))
    damaged = path / "batches" / keys.encode(keys.slot(3, 1000))
    damaged.write_bytes(b"nothing of this")
    assert damaged.name in ran("report", str(path), "-o", str(file), code=1)
    reported = embedded(file)
    assert reported["totals"]["commits"] == 4 and damaged.name in reported["damage"][0]
    assert reported["dead"]["count"] == 0
    assert "Damaged objects" in file.read_text()


def test_a_damaged_consumer_is_reported_and_the_others_are_shown(tmp_path: Path) -> None:
    path, file = tmp_path / "log", tmp_path / "report.html"
    append(str(path), *range(3))
    (path / "consumers").mkdir()
    (path / "consumers" / "daily").write_bytes(b"nothing of this")
    assert "daily" in ran("report", str(path), "-o", str(file), code=1)
    assert embedded(file)["totals"]["commits"] == 3


def test_a_damaged_consumer_of_a_log_is_named_and_those_of_others_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for name in ("a", "b"):
        append(str(path), *range(3), sequencer=name)
    head = sparkwal.Log(str(path), sequencer="b").head()
    assert head is not None
    root = opened(path)
    publish(root, consumer("everything", {"b": 2}, head.log_id), is_of_all=True)
    (path / "sequencers" / "a" / "consumers").mkdir()
    (path / "sequencers" / "a" / "consumers" / "daily").write_bytes(b"nothing of this")
    for command in ("consumers", "status"):
        shown = ran(command, str(path), "--all", code=1)
        assert "a/consumers/daily: " in shown and "everything" in shown, command
    with pytest.raises(sparkwal.InvalidLogError, match="a/consumers/daily: "):
        sparkwal.consumers(str(path), sequencers="*")


def test_the_page_of_a_time_without_commits_says_so(tmp_path: Path) -> None:
    path, file = str(tmp_path / "log"), tmp_path / "report.html"
    append(path, *range(3))
    ran("report", path, "-o", str(file), "--since", "2100-01-01")
    reported = embedded(file)
    assert (reported["totals"]["commits"], reported["series"]["buckets"]) == (0, [])
    assert reported["stored"]["bytes"] > 0
    assert "Nothing was written in this time" in file.read_text()


def test_a_nested_column_is_shown_by_its_type(tmp_path: Path) -> None:
    kind = pa.schema(
        [
            ("a", pa.struct([("b", pa.list_(pa.map_(pa.string(), pa.decimal128(9, 2))))])),
        ]
    )
    path = str(tmp_path / "log")
    with sparkwal.Appender(path, kind, producer_id="p"):
        pass
    reported = printed("report", path)
    kind = "struct<b: array<map<string, decimal(9,2)>>>"
    assert reported["schema"] == [{"name": "a", "type": kind}]
    assert reported["totals"]["commits"] == 0


class Found(HTMLParser):
    """The elements of a page and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def charts(self) -> int:
        """How many charts are in the page's picture, which is whole SVG."""
        (source,) = (found["src"] or "" for tag, found in self.tags if tag == "img")
        kind, _, data = source.partition("base64,")
        assert kind == "data:image/svg+xml;"
        drawn = ElementTree.fromstring(base64.b64decode(data)).iter()
        return sum(each.get("id", "").startswith("axes_") for each in drawn)


def test_no_text_of_the_log_leaves_its_place(tmp_path: Path) -> None:
    bad = "</script ><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e \ud800"
    path = str(tmp_path / "log")
    append(path, *range(3))
    reported = printed("report", path)
    reported["log"] |= {"url": bad, "host": bad, "leader_id": bad, "log_id": bad}
    reported["terms"]["newest"][0] |= {"host": bad, "reason": bad}
    reported["schema"][0]["name"] = reported["cost"]["prices"]["of"] = bad
    reported["damage"] = [bad]
    reported["consumers"] = [
        {
            "name": bad,
            "host": bad,
            "position": 1,
            "lag": 2,
            "lag_ms": None,
            "of_this_log": True,
            "live": True,
        }
    ]
    reported["lifecycle"] = {
        "floor": 1,
        "cut": 2,
        "to": 2,
        "is_open": False,
        "target": {"table": bad, "mode": bad, "keys": [bad]},
        "kind": bad,
        "host": bad,
        "timestamp_ms": 2**62,
    }
    text = page(reported)
    found = Found(text)
    scripts = [attributes for tag, attributes in found.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "report"}]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert "default-src 'none'" in text and "\u202e" not in text.partition('id="report"')[0]
    assert any("<img src=x" in each for each in found.texts)
    assert json.loads(re.findall(r'id="report">(.*?)</script>', text)[0])["log"]["url"] == bad


def test_a_page_loads_nothing_and_its_charts_are_a_picture_in_it(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(5))
    reported = printed("report", path)
    series = reported["series"]
    one, start = series["buckets"][-1], series["buckets"][0]["start_ms"]
    # As long as a chart gets, with a time in which nothing was written.
    series["buckets"] = [
        {
            **one,
            "start_ms": start + place * series["width_ms"],
            "commits": place % 7,
            "put_p99": place + 0.5,
        }
        for place in range(201)
        if not 50 < place < 60
    ]
    text = page(reported)
    assert len(text) < 600_000
    assert Found(text).charts() == 7
    links = re.findall(r'(?:src|href)="(?!data:)[^"]*"', text)
    assert links == [] and "width=device-width" in text
    series["buckets"] = [{**one, "start_ms": 0}, {**one, "start_ms": 253_402_300_799_000}]
    series["width_ms"] = 31_449_600_000 * 64
    assert Found(page(reported)).charts() == 7


def test_a_rate_is_of_the_time_in_which_something_was_written(tmp_path: Path) -> None:
    path = write_long(tmp_path / "log", 5001)  # one each millisecond, years ago
    reported = printed("report", path)
    assert reported["rates"]["written_ms"] == 5000
    assert reported["rates"]["commits"] == pytest.approx(1000, rel=0.01)
    assert reported["rates"]["rows"] == pytest.approx(10_000, rel=0.01)


def test_commits_whose_rows_are_in_their_records_have_a_latency(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    append(path, *range(5))
    reported = printed("report", path)
    took = [
        record.metrics.get("last_put_ms")
        for record in sparkwal.Log(path).records()
        if isinstance(record, CommitHeader)
    ]
    assert reported["totals"]["puts_timed"] == len([each for each in took if each is not None]) >= 4
    assert reported["totals"]["put_max"] == max(each for each in took if each is not None)
    assert reported["totals"]["writes_timed"] == 0
    assert "PUT of a record" in page(reported)
