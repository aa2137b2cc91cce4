"""Checkpoint files on S3, which one PUT creates."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkwal
from faults.processes import Application, wait_until
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.spark.s3a import FILE_MANAGER as ON_S3
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import s3_client
from tests.spark.tables.session import s3a
from tests.spark.tables.stateful import stateful

pytestmark = pytest.mark.capability("CHECKPOINTING_PACKAGE")
MIB = 1 << 20
VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
# S3A sends a failed request again at once, and gives up soon.
IMPATIENT = {
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.interval": "1ms",
    "fs.s3a.retry.throttle.limit": "1",
    "fs.s3a.retry.throttle.interval": "1ms",
    "fs.s3a.multipart.size": "5M",
}


@pytest.fixture
def place(delta: SparkSession, s3_proxy: S3Proxy, s3_bucket: str) -> Iterator[str]:
    """A checkpoint in a bucket that S3A reaches through the proxy."""
    conf = delta._jsc.hadoopConfiguration()
    given = {**s3a(s3_proxy.url), **IMPATIENT}
    own = {name.replace("fs.s3a.", f"fs.s3a.bucket.{s3_bucket}."): v for name, v in given.items()}
    for name, value in own.items():
        conf.set(name, value)
    yield f"s3a://{s3_bucket}/checkpoint"
    for name in own:
        conf.unset(name)


class Files:
    """The files of one folder, through a manager of its own as each run of a query has it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self.folder = self._path(folder)
        conf = spark._jsc.hadoopConfiguration()
        self.manager = jvm.sparkwal.storage.S3CheckpointFileManager(self.folder, conf)

    def path(self, name: str) -> Any:
        return self._path(self.folder, name)

    def open(self, name: str, text: str, *, overwrite: bool = False) -> Any:
        """A stream with this text, which is not closed."""
        stream = self.manager.createAtomic(self.path(name), overwrite)
        stream.write(text.encode())
        return stream

    def put(self, name: str, text: str, *, overwrite: bool = False) -> bool:
        """Whether this created the file."""
        stream = self.open(name, text, overwrite=overwrite)
        try:
            stream.close()
        except Exception as error:
            stream.cancel()
            if "FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    def read(self, name: str) -> str:
        stream = self.manager.open(self.path(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def exists(self, name: str) -> bool:
        return bool(self.manager.exists(self.path(name)))

    def names(self) -> set[str]:
        return {str(each.getPath().getName()) for each in self.manager.list(self.folder)}


@pytest.fixture
def counted(s3_proxy: S3Proxy) -> Callable[[], Counter[str]]:
    """The requests since the last call."""

    def count() -> Counter[str]:
        counts = s3_proxy.counts()
        s3_proxy.reset()
        return counts

    return count


def test_one_request_creates_replaces_or_deletes_a_file(
    delta: SparkSession, place: str, counted: Callable[[], Counter[str]]
) -> None:
    files = Files(delta, place)
    files.manager.createCheckpointDirectory()
    files.manager.mkdirs(files.path("state"))
    assert not counted()
    assert files.put("0", "first") and counted() == {"PUT": 1}
    assert files.put("0", "second", overwrite=True) and counted() == {"PUT": 1}
    assert files.put("state/0/1.delta", "deep", overwrite=True) and counted() == {"PUT": 1}
    assert files.names() == {"0", "state"} and counted() == {"LIST": 1}
    assert files.manager.exists(files.folder) and not files.exists("1") and not counted()
    assert files.put("1", "next") and counted() == {"PUT": 1}
    assert files.exists("1") and counted() == {"HEAD": 1}
    assert (files.read("0"), files.read("1")) == ("second", "next")
    counted()
    files.manager.delete(files.path("0"))
    assert not files.exists("0") and counted() == {"DELETE": 1}
    files.manager.delete(files.path("0"))
    assert files.names() == {"1", "state"}


def test_a_folder_that_is_not_there_has_no_file(
    delta: SparkSession, place: str, counted: Callable[[], Counter[str]]
) -> None:
    files = Files(delta, place)
    assert not files.manager.exists(files.folder) and counted() == {"HEAD": 1, "LIST": 1}
    assert not files.exists("0") and not counted()
    assert files.put("0", "x") and files.exists("0")


def test_a_folder_without_files_is_there_and_empty(delta: SparkSession, place: str) -> None:
    files = Files(delta, place)
    assert files.names() == set()
    assert list(files.manager.list(files.path("offsets"))) == []
    assert not files.exists("offsets")
    files.put("offsets/0", "x")
    assert Files(delta, place).exists("offsets")


def test_a_manager_of_one_file_finds_it_when_it_is_created(delta: SparkSession, place: str) -> None:
    """Spark makes one for each file with the schema of a state."""
    schema = f"{place}/state/0/0/_metadata/schema"
    own = Files(delta, schema)
    own.manager.mkdirs(own.folder.getParent())
    assert not own.manager.exists(own.folder)
    assert Files(delta, place).put("state/0/0/_metadata/schema", "v2")
    assert own.manager.exists(own.folder)
    own.manager.delete(own.folder)
    assert not own.manager.exists(own.folder)


def test_the_second_run_that_creates_a_file_is_refused(delta: SparkSession, place: str) -> None:
    one, other = Files(delta, place), Files(delta, place)
    assert one.names() == other.names() == set()
    assert one.put("0", "one")
    assert not other.exists("0")  # other has not listed since
    assert not other.put("0", "other")
    assert other.read("0") == "one"
    # Two runs of a query write the same bytes to commits/N.
    assert not other.put("0", "one")


def test_a_cancelled_file_leaves_nothing(
    delta: SparkSession,
    place: str,
    ministack_url: str,
    s3_bucket: str,
    counted: Callable[[], Counter[str]],
) -> None:
    files = Files(delta, place)
    for overwrite in (True, False):
        stream = files.open("0", "half", overwrite=overwrite)
        stream.cancel()
        stream.close()
    assert not counted()
    for overwrite in (True, False):
        stream = files.open("large", "x" * 6 * MIB, overwrite=overwrite)
        stream.cancel()
        stream.close()
    assert files.names() == set()
    client = s3_client(ministack_url)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=s3_bucket)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    ("kind", "size"), [("PUT", 1), ("UPLOAD_PART", 6 * MIB), ("COMPLETE_MULTIPART", 6 * MIB)]
)
def test_a_file_whose_reply_was_lost_is_our_own(
    delta: SparkSession, place: str, s3_proxy: S3Proxy, kind: str, size: int, overwrite: bool
) -> None:
    files, text = Files(delta, place), "x" * size
    s3_proxy.faults = [Fault("lost_reply", kind=kind, times=1)]
    assert files.put("0", text, overwrite=overwrite)
    assert s3_proxy.injected == {"lost_reply": 1}
    assert files.read("0") == text
    assert not Files(delta, place).put("0", text)


@pytest.mark.parametrize("kind", ["PUT", "COMPLETE_MULTIPART"])
def test_a_file_of_another_run_is_not_ours_when_a_reply_is_lost(
    delta: SparkSession, place: str, s3_proxy: S3Proxy, kind: str
) -> None:
    text = "x" if kind == "PUT" else "x" * 6 * MIB
    assert Files(delta, place).put("0", "another run's")
    s3_proxy.faults = [Fault("lost_reply", kind=kind, times=1)]
    assert not Files(delta, place).put("0", text)
    assert s3_proxy.injected == {"lost_reply": 1}
    assert Files(delta, place).read("0") == "another run's"


def test_a_file_that_no_request_created_raises_what_the_store_answered(
    delta: SparkSession, place: str, s3_proxy: S3Proxy
) -> None:
    files = Files(delta, place)
    for overwrite in (True, False):
        s3_proxy.faults = [Fault("error", kind="PUT", status=503)]
        with pytest.raises(Exception, match="503"):
            files.put("0", "x", overwrite=overwrite)
        s3_proxy.faults = []
        assert files.names() == set()
    assert files.put("0", "x")


def test_a_file_that_no_request_can_look_at_raises_the_first_failure(
    delta: SparkSession, place: str, s3_proxy: S3Proxy
) -> None:
    """The PUT succeeded, and every answer since is an error: it is not ours for certain."""
    files = Files(delta, place)
    s3_proxy.faults = [
        Fault("error_after", kind="PUT", status=503),
        Fault("error", kind="HEAD", status=503),
    ]
    with pytest.raises(Exception, match="503|412"):
        files.put("0", "x")
    s3_proxy.faults = []
    assert Files(delta, place).read("0") == "x"


def test_a_missing_file_raises_that_it_is_not_there(delta: SparkSession, place: str) -> None:
    with pytest.raises(Exception, match=r"java\.io\.FileNotFoundException"):
        Files(delta, place).read("0")


def test_s3a_without_conditional_creation_is_refused(
    delta: SparkSession, place: str, s3_bucket: str
) -> None:
    conf = delta._jsc.hadoopConfiguration()
    name = f"fs.s3a.bucket.{s3_bucket}.create.conditional.enabled"
    conf.set(name, "false")
    try:
        with pytest.raises(Exception, match=r"hadoop-aws 3\.4\.2 or newer"):
            Files(delta, place)
    finally:
        conf.unset(name)


def test_files_of_another_file_system_are_renamed_as_spark_does_it(
    delta: SparkSession, tmp_path: Path
) -> None:
    files = Files(delta, f"file:{tmp_path}/checkpoint")
    assert not files.manager.exists(files.folder)
    files.manager.createCheckpointDirectory()
    assert files.put("0", "first") and not files.put("0", "second")
    assert files.put("1", "first", overwrite=True)
    files.manager.delete(files.path("0"))
    assert not files.exists("0") and files.read("1") == "first"
    assert "1" in files.names()


@pytest.fixture
def on_s3(delta: SparkSession) -> Iterator[SparkSession]:
    """A session whose queries write their checkpoints by this manager."""
    sparkwal.register(delta)
    settings = {FILE_MANAGER: ON_S3, "spark.sql.shuffle.partitions": "3"}
    before = {name: delta.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        delta.conf.set(name, value)
    yield delta
    for name, old in before.items():
        delta.conf.unset(name) if old is None else delta.conf.set(name, old)


@pytest.mark.parametrize(
    ("provider", "version"),
    [
        ("RocksDB", "1"),
        pytest.param("RocksDB", "2", marks=pytest.mark.slow),
        ("HDFSBacked", "1"),
    ],
)
def test_a_microbatch_of_a_stateful_query_puts_each_file_once_and_asks_for_none(
    on_s3: SparkSession,
    place: str,
    s3_proxy: S3Proxy,
    tmp_path: Path,
    provider: str,
    version: str,
) -> None:
    given = {PROVIDER: PROVIDERS.format(provider), CHANGELOG: "true", VERSION: version}
    # Spark 4.1 puts a checksum beside each file of a state in version 1 too.
    given[CHECKSUMS] = str(version == "2").lower()
    for name, value in given.items():
        on_s3.conf.set(name, value)
    try:
        query = stateful(on_s3, place, str(tmp_path / "log")).start()
    finally:
        for name in given:
            on_s3.conf.unset(name)
    wait_until(lambda: has_done(query, 5), "five microbatches")
    query.stop()
    requests = [each for each in s3_proxy.requests if each.key.startswith("checkpoint/")]
    puts = Counter(each.key for each in requests if each.kind == "PUT")
    assert set(puts.values()) == {1}
    # From the offsets of microbatch 2 to those of 4: two of everything, and no other request.
    order = [each.key for each in requests]
    some = requests[order.index("checkpoint/offsets/2") : order.index("checkpoint/offsets/4")]
    some = [each for each in some if each.kind != "DELETE"]
    folders = Counter((each.kind, each.key.split("/")[1]) for each in some)
    # In version 2 Spark puts a checksum beside each file of a state.
    of_state = 12 if version == "2" else 6
    assert folders == {("PUT", "offsets"): 2, ("PUT", "commits"): 2, ("PUT", "state"): of_state}
    assert all(each.conditional for each in some if "/state/" not in each.key)


def has_done(query: StreamingQuery, microbatches: int) -> bool:
    """Whether it has; raises what the query failed with."""
    failed = query.exception()
    if failed is not None:
        raise failed
    last = query.lastProgress
    return last is not None and last.batchId >= microbatches


@pytest.fixture
def start_driver(tmp_path: Path, ministack_url: str) -> Iterator[Callable[[str], Application]]:
    """Start the query of a checkpoint in another process; each ends with the test."""
    started: list[Application] = []
    settings = {f"spark.hadoop.{name}": value for name, value in s3a(ministack_url).items()}
    settings[FILE_MANAGER] = ON_S3

    def run(checkpoint: str) -> Application:
        script = str(Path(__file__).with_name("stateful.py"))
        arguments = [checkpoint, str(tmp_path / "log"), json.dumps(settings)]
        command = [sys.executable, script, *arguments]
        started.append(Application("stateful", tmp_path, command, tmp_path / "tmp"))
        return started[-1]

    yield run
    for each in started:
        each.end()


@pytest.mark.slow
def test_a_query_whose_driver_was_killed_continues(
    on_s3: SparkSession, place: str, tmp_path: Path, start_driver: Callable[[str], Application]
) -> None:
    log = str(tmp_path / "log")
    for _ in range(2):
        driver = start_driver(place)
        driver.wait_for(lambda: len(driver.lines()) >= 2, "two microbatches")  # noqa: B023
        driver.kill()
    stateful(on_s3, place, log).trigger(availableNow=True).start().awaitTermination()
    found = sorted(sparkwal.Log(log).to_pandas()["value"])
    assert len(found) >= 50 and found == list(range(len(found)))


@pytest.mark.slow
def test_a_run_that_slept_while_another_run_continued_is_refused(
    on_s3: SparkSession, place: str, tmp_path: Path, start_driver: Callable[[str], Application]
) -> None:
    """No sink refuses it, only the files of the checkpoint do."""
    here = stateful(on_s3, place, "").format("noop").trigger(availableNow=True)
    driver = start_driver(place)
    driver.wait_line("batch ")
    driver.signal(signal.SIGSTOP)
    for _ in range(2):
        here.start().awaitTermination()
    driver.signal(signal.SIGCONT)
    driver.wait_line("failed: ")
    (failed,) = [line for line in driver.lines() if line.startswith("failed")]
    assert "Multiple streaming queries are concurrently using" in failed
    here.start().awaitTermination()
