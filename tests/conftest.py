"""Fixtures all tests share. Servers and Spark start when first asked for."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from sparkwal import events
from sparkwal.events import Event
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import (
    Server,
    ServerError,
    log_options,
    make_bucket,
    start_ministack,
    start_moto,
)
from tests import classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A failure prints what reproduces it; shared machines are too uneven for deadlines.
settings.register_profile("sparkwal", print_blob=True, deadline=None)
# `tests/run.sh fast` chooses it.
settings.register_profile("fast", settings.get_profile("sparkwal"), max_examples=20)
settings.load_profile("sparkwal")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # nohup, or a script's `&`, began the run. Processes that tests start would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.sizes", "tests.capabilities")


def pytest_collection_finish() -> None:
    # What was imported and collected stays: the collector need not look at it again and again.
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set the options that Spark's launcher gives to every JVM of a test.

    tests/run.sh has made the archive; without it the first test does.
    """
    if item.get_closest_marker("spark") and "SPARK_SUBMIT_OPTS" not in os.environ:
        os.environ["SPARK_SUBMIT_OPTS"] = classes.options()


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    """The events of this process, in order."""
    reported: list[Event] = []
    unsubscribe = events.subscribe(reported.append)
    yield reported
    unsubscribe()


@pytest.fixture(scope="session")
def ministack_url() -> Iterator[str]:
    with start_ministack() as server:
        yield server.url


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with start_moto() as server:
        yield server.url


def started_or_skipped(
    start: Callable[[], Server], is_missing: Callable[[ServerError], bool], needs: str
) -> Server:
    """Start a server, or skip the test where the machine lacks what it needs.

    Args:
        start: starts it.
        is_missing: whether an error means that.
        needs: what it needs, for the reason.
    """
    try:
        return start()
    except ServerError as error:
        if is_missing(error):
            pytest.skip(f"{needs}: {str(error)[:200]}")
        raise


@pytest.fixture(scope="session")
def azurite_url() -> Iterator[str]:
    from tests.store.azurite import is_missing, start_azurite

    needs = "Azurite needs node, npm and the registry of npm"
    with started_or_skipped(start_azurite, is_missing, needs) as server:
        yield server.url


@pytest.fixture(scope="session")
def fake_gcs_url() -> Iterator[str]:
    from tests.store.fake_gcs import start_fake_gcs

    def is_missing(error: ServerError) -> bool:
        return "cannot be started" in str(error) or "go: " in str(error)

    needs = "fake-gcs-server needs Go and its proxy of modules"
    with started_or_skipped(start_fake_gcs, is_missing, needs) as server:
        yield server.url


@pytest.fixture(scope="module")
def catalog_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The REST catalog of Iceberg's own library."""
    from tests.lifecycle.iceberg_rest import start_catalog

    def is_missing(error: ServerError) -> bool:
        return "cannot be started" in str(error) or "ivy" in str(error)

    def start() -> Server:
        return start_catalog(tmp_path_factory.mktemp("catalog"))

    needs = "the catalog needs Java and Maven Central"
    with started_or_skipped(start, is_missing, needs) as server:
        yield server.url


@pytest.fixture
def azurite_proxy(azurite_url: str) -> Iterator[S3Proxy]:
    """A proxy in front of Azurite, without faults."""
    with S3Proxy(azurite_url) as proxy:
        yield proxy


@pytest.fixture
def s3_bucket(ministack_url: str) -> str:
    """The name of a fresh bucket on ministack."""
    name = f"wal-{uuid.uuid4().hex}"
    make_bucket(ministack_url, name)
    return name


@pytest.fixture
def s3_path(ministack_url: str, s3_bucket: str) -> tuple[str, dict[str, str]]:
    """A path for a new log and the options to reach it."""
    return f"s3://{s3_bucket}/log", log_options(ministack_url)


@pytest.fixture
def s3_proxy(ministack_url: str) -> Iterator[S3Proxy]:
    """A proxy in front of ministack, without faults."""
    with S3Proxy(ministack_url) as proxy:
        yield proxy


@pytest.fixture
def connect_port() -> Iterator[None]:
    """Hold the port of a local server of Spark Connect."""
    with (Path(tempfile.gettempdir()) / "sparkwal-connect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local Spark that knows the data source."""
    from pyspark.sql import SparkSession

    import sparkwal

    source = str(Path(sparkwal.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        # Spark takes the interpreter of its workers, and where they import from, out of
        # the environment of the JVM, which inherits this one.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", source, prepend=os.pathsep)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("sparkwal-tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            # For some rows Spark would take longer to compile than to go through them.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        try:
            session.sparkContext.setLogLevel("ERROR")
            sparkwal.register(session)
            yield session
        finally:
            session.stop()
