"""Each question of docs/sql.md gets an answer, on a local disk and on S3."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from tests.consumers import consumer, join
from tests.docs.pages import commands

QUESTIONS = commands("sparkwal/docs/sql.md")
SCHEMA = pa.schema([("id", pa.int64()), ("origin", pa.string())])


def write(path: str, **options: str) -> None:
    """Two producers and a sequencer; a consumer that has not read the second's rows."""
    writers = [("gateway-1", {}), ("gateway-2", {}), ("gateway-1", {"sequencer": "b"})]
    for place, (producer, more) in enumerate(writers):
        given: dict[str, Any] = {**options, **more}
        with sparkwal.Appender(
            path, SCHEMA, producer_id=producer, maxInFlightRequests=2, **given
        ) as wal:
            for n in range(3):
                wal.append([{"id": n + place, "origin": "JFK"}]).result()
    log = open_log(from_keywords(SourceOptions, path, options))
    head = sparkwal.Log(path, **options).head()
    assert head is not None
    audit = consumer("audit", 5, head.log_id, host="etl-1", timestamp_ms=head.timestamp_ms)
    join(log, audit)


def asked(line: str, path: str, folder: Path, options: dict[str, str]) -> list[dict[str, object]]:
    words = shlex.split(line.replace("s3://bucket/wal", path))
    assert words[:2] == ["sparkwal", "sql"]
    given = [
        part for name, value in options.items() for part in ("--log-option", f"{name}={value}")
    ]
    if "-o" in words:
        words[words.index("-o") + 1] = str(folder / "out")
    else:
        words.append("--json")
    result = CliRunner().invoke(main, [*words[1:], *given])
    assert result.exit_code == 0, f"{line}: {result.output}"
    if "-o" in words:
        assert (folder / "out").stat().st_size
        return []
    return [json.loads(each) for each in result.stdout.splitlines()]


def check(path: str, folder: Path, options: dict[str, str]) -> None:
    write(path, **options)
    found = {line: asked(line, path, folder, options) for line in QUESTIONS}
    # No write was repeated, and no position is dead.
    quiet = [line for line in QUESTIONS if "retries) > 0" in line or "before + 1" in line]
    assert [line for line, rows in found.items() if not rows and "-o" not in line] == quiet

    def of(words: str) -> list[dict[str, object]]:
        return next(rows for line, rows in found.items() if words in line)

    assert {row["producer"] for row in of("WHERE id = 1")} == {"gateway-1", "gateway-2"}
    (unread,) = of("FROM consumers")
    assert (unread["name"], unread["rows"]) == ("audit", 3)
    assert [row["id"] for row in of("HAVING n > 1")] != []
    assert of("FROM current") == [{"current": 6, "log": 6}]
    assert {row["sequencer"] for row in of('GROUP BY 1" --all')} == {"default", "b"}


def test_the_page_has_twenty_questions() -> None:
    assert len(QUESTIONS) == 1 + 20


def test_the_queries_of_the_page_run_on_a_local_disk(tmp_path: Path) -> None:
    check(str(tmp_path / "wal"), tmp_path, {})


def test_the_queries_of_the_page_run_on_s3(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    check(path, tmp_path, options)
