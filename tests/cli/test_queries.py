"""`sparkwal queries` and `audit`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.checkpoints import unread
from sparkwal.cli.main import main
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.hint import Hints
from tests.checkpoints.forks import OffsetStream
from tests.checkpoints.stateful import StatefulStream
from tests.logs import append


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a log on this disk, with a query over Kafka's offsets."""
    path = str(tmp_path / "wal")
    log = open_log(from_keywords(SourceOptions, path, {}))
    place = Path(sparkwal.checkpoint(path, "orders", folder=tmp_path / "checkpoint"))
    OffsetStream(log, place, Hints("wal", tmp_path / "hints")).run(range(6), each=2)
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def documents(*arguments: str) -> dict[str, Any]:
    code, output = run(*arguments, "--json")
    assert code == 0, output
    document: dict[str, Any] = json.loads(output)
    return document


def test_queries(path: str) -> None:
    (query,) = documents("queries", path)["queries"]
    assert (query["name"], query["position"], query["rows"]) == ("orders", 3, 2)
    assert query["sources"] == {"0": {"orders": {"0": 6}}}
    assert (query["fork_from"], query["fork_until"]) == (1, 3)
    (then,) = documents("queries", path, "--at", "2")["queries"]
    assert then["sources"] == {"0": {"orders": {"0": 4}}}
    code, text = run("queries", path)
    assert code == 0 and "orders[0=6]" in text and "1…3" in text


def test_queries_names_the_size_of_a_state(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files of the stream are nowhere.
    monkeypatch.setattr(unread, "is_missing", lambda _: False)
    assert "state" not in run("queries", path)[1]
    log = open_log(from_keywords(SourceOptions, path, {}))
    place = tmp_path / "stateful"
    sparkwal.checkpoint(path, "unique", folder=place)
    StatefulStream(log, place, Hints("wal", tmp_path / "hints")).run(range(4))
    _, unique = documents("queries", path)["queries"]
    code, text = run("queries", path)
    assert code == 0 and "state" in text and f"{unique['state_bytes']} B" in text
    shutil.rmtree(place)
    assert run("checkpoint", path, "unique", "--to", str(place))[0] == 0
    read = sum(file.stat().st_size for file in place.rglob("state/[0-9]*/[0-9]*/*.*"))
    assert read == unique["state_bytes"]


def test_queries_at_a_wrong_place(path: str, tmp_path: Path) -> None:
    assert run("queries", path, "--at", "9")[0] == 2
    assert run("queries", path, "--at", "yesterday")[0] == 2
    assert run("queries", str(tmp_path / "none"))[0] == 2


@pytest.mark.parametrize(("position", "how"), [(2, "missing"), (3, "damaged")])
def test_a_damaged_record_does_not_hide_the_queries(
    path: str, tmp_path: Path, position: int, how: str
) -> None:
    """A log whose end is damaged is one that users fork."""
    file = Path(path) / keys.key("", keys.slot(position, 1000))
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(b"<html>" * 99)
    for at in ((), ("--at", "1")):
        result = CliRunner().invoke(main, ["queries", path, "--json", *at])
        assert result.exit_code == 1 and f"position {position}" in result.stderr
        (query,) = json.loads(result.stdout)["queries"]
        assert query["name"] == "orders"
        place = query["fork_until"]
        assert place == (1 if at else 2 if how == "damaged" else 3)
        folder, new = tmp_path / f"new{len(at)}", str(tmp_path / "new")
        fork = sparkwal.Fork(path, "orders", at=place)
        assert sparkwal.checkpoint(new, "new", folder=folder, fork=fork) == str(folder)


def test_queries_of_python(path: str) -> None:
    log = sparkwal.Log(path)
    assert [query.position for query in log.queries()] == [3]
    assert [query.position for query in log.queries(at=1)] == [1]
    assert log.queries(at="2001-01-01") == []
    with pytest.raises(sparkwal.OptionError, match="a position such as"):
        log.queries(at="then")


def test_audit(path: str) -> None:
    document = documents("audit", path)
    assert document["whole"] and document["complete_until"] == "1970-01-01T00:00:06.000Z"
    (query,) = document["queries"]
    assert (query["microbatches"], query["rows"], query["breaks"]) == (3, 6, [])
    code, text = run("audit", path, "--query", "orders")
    assert code == 0 and "complete until 1970" in text
    assert run("audit", path, "--query", "bills")[0] == 1


def test_the_audit_names_the_option_for_microbatches_without_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    log = open_log(from_keywords(SourceOptions, path, {}))
    place = Path(sparkwal.checkpoint(path, "orders", folder=tmp_path / "checkpoint"))
    hints = Hints("wal", tmp_path / "hints")
    OffsetStream(log, place, hints, hidden=frozenset({2})).run(range(5))
    code, text = run("audit", path)
    assert code == 1 and "A microbatch without rows has no record: --allow-empty accepts" in text
    assert run("audit", path, "--allow-empty")[0] == 0


def test_a_log_without_a_query_has_nothing_to_audit(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    append(path, 1)
    code, text = run("audit", path)
    assert (code, text) == (0, "no query with a checkpoint wrote here\n")
    assert documents("audit", path)["queries"] == []
    code, text = run("audit", path, "--query", "orders")
    assert code == 1 and "no query 'orders' has a record" in text
    assert run("audit", str(tmp_path / "none"))[0] == 2


def test_audit_of_a_break(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(from_keywords(SourceOptions, path, {}))
    place = tmp_path / "checkpoint"
    stream = OffsetStream(log, place, Hints("wal", tmp_path / "hints"))
    plan = (place / "offsets/2").read_text()
    (place / "offsets/2").write_text(plan.replace('"0":6', '"0":9'))
    stream.plan_to(3, 10)
    name = "sparkwal.checkpoints.carry.StreamCheckpoint._check_same_input"
    monkeypatch.setattr(name, lambda *_: None)
    stream.commit(3, [9])
    code, text = run("audit", path)
    assert code == 1
    assert "hole of source 0/orders/0 between positions 3 and 5" in text
    assert "expected 6, and it is 9" in text
    code, text = run("audit", path, "--json")
    assert code == 1 and json.loads(text)["queries"][0]["breaks"][0]["kind"] == "hole"


def test_diff(path: str, tmp_path: Path) -> None:
    fork = sparkwal.Fork(path, "orders", at=1)
    new = str(tmp_path / "new")
    place = Path(sparkwal.checkpoint(new, "orders", folder=tmp_path / "v2", fork=fork))
    log = open_log(from_keywords(SourceOptions, new, {}))
    hints = Hints("new", tmp_path / "hints-new")
    stream = OffsetStream(log, place, hints, hidden=frozenset({7}))
    stream.run(range(6), each=4)
    document = documents("diff", path, new)
    assert (document["same"], document["differs"]) == (1, None)
    assert document["switch"] == {"endingPosition": 3, "startingPosition": 2}
    code, text = run("diff", path, new)
    assert code == 0 and "endingPosition=3, then B from startingPosition=2" in text
    again = open_log(from_keywords(SourceOptions, path, {}))
    OffsetStream(again, tmp_path / "checkpoint", Hints("wal", tmp_path / "hints")).run(range(8), 2)
    stream.run(range(8), each=2)
    code, text = run("diff", path, new)
    assert code == 1 and "2 rows in A and 1 in B" in text
