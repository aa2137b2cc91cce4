"""Attacks by a writer of the bucket, by a false store, and by another user of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from store.stub_s3 import Stub

import sparkwal
from sparkwal.cli.main import main
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import LeaderHeader
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.handover import Requests
from sparkwal.protocol.hint import Fenced, LeaderNote
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import Transient
from sparkwal.store.config import S3Config
from sparkwal.store.s3 import S3Store
from tests.protocol.query import hints_in
from tests.security.hostile_reader import FORGED, SCHEMA, common, put

READER = Path(__file__).with_name("hostile_reader.py")
ROWS = pa.schema([("v", pa.int64())])
OUT = "../../../outside"


@pytest.mark.process
def test_a_forged_object_is_an_error_and_takes_no_memory(tmp_path: Path) -> None:
    source = str(Path(sparkwal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(READER), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # An object that is shorter than it declares counts as torn: the log ends before it.
    outcomes = {"many_rows_inlined": "0 rows True"}
    assert done.stdout.splitlines() == [
        f"{forge.__name__} {outcomes.get(forge.__name__, 'InvalidLogError False')}"
        for forge in FORGED
    ]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no name in a log may reach; the log is beside it, three folders down."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "archive").write_text("{}")
    return folder


def forged_log(folder: Path, **reported: str) -> Path:
    """A log with one forged leader record."""
    fields = {**common(0), "prev_position": -1, "reason": "r", "host": "h", **reported}
    header = LeaderHeader(**fields)  # type: ignore[arg-type]
    put(folder, header.number, arrowfile.encode(header, SCHEMA))
    return folder


def everything(folder: Path) -> set[Path]:
    return {each.relative_to(folder) for each in folder.rglob("*")}


def test_names_in_a_log_lead_out_of_no_folder(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = everything(outside)
    archive = forged_log(tmp_path / "a" / "log", txns_archive=f"{OUT}/archive")
    for _ in range(2):
        with pytest.raises(sparkwal.SparkWalError, match="'.' or '..'|archive"):
            sparkwal.Appender(str(archive), ROWS, producer_id="p").close()
    named = forged_log(tmp_path / "b" / "log", log_id=OUT, leader_id=OUT, plan_id=OUT)
    log = open_log(parse(SourceOptions, {"path": str(named)}))
    live = find_head(log).live
    assert live is not None
    with pytest.raises(sparkwal.OptionError, match="'.' or '..'"):
        Requests(log, "newcomer").ask(live.header)
    journal = tmp_path / "c" / "journal"
    with sparkwal.Appender(
        str(tmp_path / "c" / "log"), ROWS, producer_id=f"{OUT}/x", journal=str(journal)
    ) as wal:
        wal.append([{"v": 1}]).result()
    made = sparkwal.checkpoint(str(tmp_path / "c" / "log"), f"{OUT}/x")
    assert Path(made).is_relative_to(tmp_path / "state")
    for name in (OUT, "a/b", "..", "a\x00", "/etc"):
        for option in ("sequencer", "consumer"):
            with pytest.raises(sparkwal.OptionError):
                parse(SourceOptions, {"path": str(named), option: name})
    assert everything(outside) == before
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b", "c", "outside", "state"}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_local_files_are_private_to_their_user(
    tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = str(tmp_path / "log")
    with sparkwal.Appender(path, ROWS, producer_id="p", journal=str(tmp_path / "journal")) as wal:
        wal.append([{"v": 1}]).result()
    checkpoint = Path(sparkwal.checkpoint(path, "q"))
    hints = hints_in(tmp_path)
    hints.save("x", Fenced(LeaderNote("x", "host", position=0, term=0, timestamp_ms=0)))
    private = [tmp_path / "journal", hints.folder, checkpoint]
    assert [stat.S_IMODE(each.stat().st_mode) for each in private] == [0o700] * 3
    files = [each for each in (tmp_path / "journal").rglob("*") if each.is_file()]
    assert files and {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_redirects_of_an_endpoint_are_not_followed() -> None:
    elsewhere, stub = Stub(), Stub()
    config = S3Config(
        endpoint=stub.url, region="us-east-1", access_key_id="k" * 20, secret_access_key="s" * 20
    )
    store = S3Store("bucket", config)
    for status in (301, 302, 303, 307, 308):
        body = b"<Error><Code>TemporaryRedirect</Code><Message>go on</Message></Error>"
        stub.replies = [(status, {"Location": f"{elsewhere.url}/bucket/key"}, body)] * 2
        # urllib3 fails at a 303, before it would have to follow it or not.
        with pytest.raises((sparkwal.OptionError, Transient), match="region|unhandled"):
            store.get("key")
        with pytest.raises((sparkwal.OptionError, Transient), match="region|unhandled"):
            store.put_if_absent("key", b"rows")
    assert elsewhere.requests == [] and len(stub.requests) == 10
    elsewhere.close()
    stub.close()


def test_keys_of_a_listing_are_only_names(tmp_path: Path) -> None:
    """A bucket may hold keys that no log makes."""
    log = tmp_path / "log"
    forged_log(log)
    for name in ("99999999999999999999", "x", "..%2f", "0" * 20 + "1"):
        (log / "batches" / name).write_bytes(b"\x1b[2J")
    assert keys.decode("99999999999999999999") is None
    head = sparkwal.Log(str(log)).head()
    assert head is not None and head.position == 0


FORGED_LINE = "etl-1\ns3://bucket/wal: positions 0…9, 9 commits: sound"


def test_a_name_in_a_log_makes_no_line_of_its_own(tmp_path: Path) -> None:
    """Otherwise it could be read as what sparkwal itself reports."""
    path = str(forged_log(tmp_path / "log", leader_id=FORGED_LINE, host=FORGED_LINE))
    (tmp_path / "log" / "batches" / "x\nfile: positions 0…9: sound").write_bytes(b"x")
    assert len(str(sparkwal.verify(path)).splitlines()) == 2
    for command in ("verify", "status", "log", "show"):
        output = CliRunner().invoke(main, [command, path]).output
        assert command == "verify" or "etl-1" in output
        assert not [line for line in output.splitlines() if line.startswith(("s3:", "file: "))]
    assert "\n" not in str(sparkwal.SparkWalError(FORGED_LINE))
