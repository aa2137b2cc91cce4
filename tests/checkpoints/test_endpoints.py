"""One log by several endpoints of its store: its id decides whose folder is whose."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal import OptionError
from sparkwal.checkpoints import folder
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.writing import SinkOptions
from sparkwal.protocol.hint import Hints
from sparkwal.testing.servers import log_options
from tests.checkpoints.stream import FileStream

SCHEMA = pa.schema([("v", pa.int64())])


class Endpoints:
    """A bucket by two names of its server."""

    def __init__(self, url: str, bucket: str, work: Path) -> None:
        self.path = f"s3://{bucket}/wal"
        self.one = log_options(url)
        self.other = log_options(url.replace("127.0.0.1", "localhost"))
        self.work = work

    def run(self, place: str, rows: range, options: dict[str, str]) -> None:
        log = open_log(from_keywords(SinkOptions, self.path, options))
        FileStream(log, Path(place), Hints(log.identity, self.work / "hints")).run(rows)


@pytest.fixture
def endpoints(ministack_url: str, s3_bucket: str, tmp_path: Path) -> Endpoints:
    return Endpoints(ministack_url, s3_bucket, tmp_path)


def test_a_given_folder_continues_by_another_endpoint(endpoints: Endpoints, tmp_path: Path) -> None:
    given = tmp_path / "cp"
    place = sparkwal.checkpoint(endpoints.path, "orders", folder=given, **endpoints.one)
    endpoints.run(place, range(2), endpoints.one)
    (Path(place) / "kept").write_text("not rebuilt")
    assert sparkwal.checkpoint(endpoints.path, "orders", folder=given, **endpoints.other) == place
    assert (Path(place) / "kept").exists() and folder.latest(Path(place), "commits") == 1
    with pytest.raises(OptionError, match="is the checkpoint of query 'orders' of"):
        sparkwal.checkpoint(endpoints.path, "returns", folder=given, **endpoints.other)


def test_the_default_folder_is_found_by_another_endpoint(
    endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = sparkwal.checkpoint(endpoints.path, "orders", **endpoints.one)
    endpoints.run(place, range(2), endpoints.one)
    assert sparkwal.checkpoint(endpoints.path, "orders", **endpoints.other) == place
    # Another log of the same store has another folder.
    another = sparkwal.checkpoint(f"{endpoints.path}-2", "orders", **endpoints.other)
    assert another != place


def test_a_folder_of_another_log_is_refused_by_any_endpoint(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    given = tmp_path / "cp"
    sparkwal.checkpoint(endpoints.path, "orders", folder=given, **endpoints.one)
    other = f"{endpoints.path}-2"
    with sparkwal.Appender(other, SCHEMA, producer_id="p", **endpoints.other) as wal:
        wal.append([{"v": 1}])
    with pytest.raises(OptionError, match="is the checkpoint of query 'orders' of"):
        sparkwal.checkpoint(other, "orders", folder=given, **endpoints.other)
