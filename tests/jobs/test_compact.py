"""jobs/compact.py as a user runs it: effects, refusals, exit codes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import compact
import sparkwal
from compact import Compaction, Failures, RunOptions, _continuously
from sparkwal.cli.lifecycle_flags import EventPrinter
from sparkwal.errors import (
    InvalidLogError,
    OptionError,
    PlanError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.lifecycle_record import INTENT, Target
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.open import open_log
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.clock import Clock
from sparkwal.testing.proxy import Fault, S3Proxy
from support.follow import Meter, Signals
from tests import classes, jars
from tests.chains import put_next
from tests.jobs.lives import (
    JOBS,
    JVM_SAYS_FIRST,
    SCHEMA,
    chain,
    collect,
    refused,
    run,
    running,
    write,
)
from tests.store import fake_gcs

SECRET = "7h1s-must-not-be-shown"


@pytest.mark.process
def test_retention_without_a_table_moves_the_floor_and_starts_no_spark(tmp_path: Path) -> None:
    write(tmp_path / "wal", range(20))
    done = run(tmp_path, "compact", "wal", "--retain-bytes", "15kb")
    assert done.returncode == 0, done.stderr
    state = chain(tmp_path / "wal")
    assert state is not None and state.floor > 0 and state.target is None
    assert str(state.floor) in done.stdout.splitlines()[-1].split()
    assert JVM_SAYS_FIRST not in done.stderr
    again = run(tmp_path, "compact", "wal", "--retain", "7d")
    assert again.returncode == 0 and chain(tmp_path / "wal") == state
    assert "none was due" in again.stdout.splitlines()[-1]


@pytest.mark.process
def test_with_all_each_log_under_a_path_is_compacted(tmp_path: Path) -> None:
    for name in ("default", "a", "b"):
        write(tmp_path / "wal", range(10), name)
    one = run(tmp_path, "compact", "wal", "--retain-bytes", "1kb", "--sequencer", "a")
    assert one.returncode == 0, one.stderr
    assert chain(tmp_path / "wal", "a") is not None and chain(tmp_path / "wal", "b") is None
    every = run(tmp_path, "compact", "wal", "--retain-bytes", "1kb", "--all")
    assert every.returncode == 0, every.stderr
    assert all(chain(tmp_path / "wal", name) for name in ("default", "a", "b"))
    assert [row.split()[0] for row in every.stdout.splitlines()[-3:]] == ["default", "a", "b"]


TABLE = ("compact", "wal", "lake")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compact", "wal"), "give TABLE, or --retain or --retain-bytes"),
        (("compact", "nothing", "--retain", "7d"), "/nothing; check the path"),
        (("compact", "nothing", "lake"), "/nothing; check the path"),
        (("compact", "wal", "--retain", "7"), "a time with a unit, at most 36500d"),
        (("compact", "wal", "--retain", "7d", "--gc-grace", "5min"), "at least 1h is needed"),
        (("compact", "wal", "--retain", "7d", "--now"), "are for a log with TABLE"),
        (("compact", "wal", "--retain", "7d", "--key", "id"), "name the table"),
        (("compact", "wal", "wal/lake"), "one is inside the other"),
        (("compact", "wal", "."), "one is inside the other"),
        ((*TABLE, "--delete-when", "v = 'x'"), "give keys"),
        ((*TABLE, "--partition-by", "id", "--cluster-by", "v"), "give one of the two"),
        ((*TABLE, "--persist-row-threshold", "many"), "a whole number from 0 on, of at most 19"),
        ((*TABLE, "--sequencer", "a", "--all"), "give one of them"),
        ((*TABLE, "--continuous", "--accept-table"), "--accept-table is for one run"),
        ((*TABLE, "--continuous", "--give-up-range"), "--give-up-range does nothing else"),
        ((*TABLE, "--change-target", "--give-up-range"), "--give-up-range does nothing else"),
        ((*TABLE, "--continuous", "--change-target"), "--change-target does nothing else"),
        ((*TABLE, "--refused-again", "--continuous"), "--refused-again does nothing else"),
        (("compact", "wal", "--retain", "7d", "--refused-again"), "are for a log with TABLE"),
        ((*TABLE, "--soft-limit-bytes", "2gb", "--hard-limit-bytes", "1gb"), "is above"),
        ((*TABLE, "--log-option", "persistRowTreshold=1"), "did you mean 'persistRowThreshold'?"),
        ((*TABLE, "--log-option", "compression=zstd"), "is for writing"),
        ((*TABLE, "--log-option", f"secretAccessKey={SECRET}"), "go together"),
        ((*TABLE, "--property", SECRET), "--property number 1 is not NAME=VALUE"),
    ],
)
def test_wrong_usage_ends_with_2_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    write(tmp_path / "wal", range(1))
    code, printed = refused(monkeypatch, tmp_path, *arguments)
    assert code == 2, printed
    assert message in " ".join(printed.split()) and SECRET not in printed
    assert chain(tmp_path / "wal") is None


def test_a_tables_name_never_controls_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "wal", range(9))
    sparkwal.Lifecycle(str(tmp_path / "wal"), retainBytes="1kb").run_once()
    state, log = chain(tmp_path / "wal"), open_log(StoreOptions(path=str(tmp_path / "wal")))
    assert state is not None
    target = Target("\x1b[2Jlake")
    assert put_next(
        log, state, INTENT, Clock(), "test", k=1, cut=state.floor, to=state.floor + 1, target=target
    )
    for others in (("--retain", "7d"), ("other",)):
        code, printed = refused(monkeypatch, tmp_path, "compact", "wal", *others)
        assert code == 2 and r"\u001b[2Jlake" in printed and "\x1b" not in printed, printed


def made_again(path: Path) -> None:
    """A log with the lifecycle of another."""
    write(path, range(9))
    life = sparkwal.Lifecycle(str(path), retainBytes="1kb")
    assert life.run_once().floor > 0
    shutil.rmtree(path / "batches")
    write(path, range(9))


@pytest.mark.process
def test_suspended_it_ends_with_3_and_one_message(tmp_path: Path) -> None:
    made_again(tmp_path / "wal")
    before = chain(tmp_path / "wal")
    failed = run(tmp_path, "compact", "wal", "--retain-bytes", "1kb")
    assert failed.returncode == 3
    [line] = failed.stderr.splitlines()
    assert line.startswith("Error: suspended (plan): ") and "deleted and recreated" in line
    assert chain(tmp_path / "wal") == before


@pytest.mark.process
def test_a_suspended_log_does_not_stop_the_others(tmp_path: Path) -> None:
    made_again(tmp_path / "wal")
    write(tmp_path / "wal", range(9), "b")
    failed = run(tmp_path, "compact", "wal", "--retain-bytes", "1kb", "--all")
    assert failed.returncode == 3
    assert "Error: default: suspended (plan)" in failed.stderr
    assert chain(tmp_path / "wal", "b") is not None


@pytest.mark.process
def test_continuous_waits_for_the_log_and_ends_by_sigterm(tmp_path: Path) -> None:
    arguments = ("wal", "--retain-bytes", "1kb", "--continuous", "--interval", "100ms")
    with running(tmp_path, "compact", *arguments) as job:
        write(tmp_path / "wal", range(5))
        job.until(lambda: chain(tmp_path / "wal"))
        first = chain(tmp_path / "wal")
        write(tmp_path / "wal", range(5))
        job.until(lambda: chain(tmp_path / "wal") != first)
        assert job.terminate() == 143
        assert "Traceback" not in job.reported() and "Error" not in job.reported()


@pytest.mark.process
def test_continuous_retries_a_suspended_compaction_and_reports_it(tmp_path: Path) -> None:
    made_again(tmp_path / "wal")
    arguments = ("wal", "--retain-bytes", "1kb", "--continuous", "--interval", "100ms")
    with running(tmp_path, "compact", *arguments) as job:
        job.until(lambda: "tried again in 0.4 s" in job.reported())
        assert "default: suspended (plan): " in job.reported()
        # It was mended.
        shutil.rmtree(tmp_path / "wal" / "lifecycle")
        job.until(lambda: chain(tmp_path / "wal"))
        assert job.terminate() == 143


def test_continuously_a_list_that_is_refused_ends_nothing(
    tmp_path: Path, s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> None:
    path, options = s3_path
    options = {**options, "endpoint": s3_proxy.url, "maxRetryAttempts": "0"}
    write(path, range(9), **options)
    s3_proxy.reset()
    reach = [f"--log-option={name}={value}" for name, value in options.items()]
    arguments = (path, "--all", "--retain-bytes", "1kb", "--continuous", "--interval", "100ms")
    with running(tmp_path, "compact", *arguments, *reach) as job:
        job.until(lambda: s3_proxy.counts().get("PUT"))
        s3_proxy.faults = [Fault("error", kind="LIST", status=503)]
        job.until(lambda: "tried again in 0.4 s" in job.reported())
        s3_proxy.faults = []
        before = s3_proxy.counts()["LIST"]
        job.until(lambda: s3_proxy.counts()["LIST"] > before + 9)
        assert job.terminate() == 143


def test_continuously_it_may_fail_for_days() -> None:
    signals = Signals()
    work = Compaction(LifecycleOptions(path="wal"), {}, False, None, RunOptions(interval=0.0))
    failures = iter(range(1100))

    def round() -> dict[str, Any]:
        signals.received = None if next(failures, None) is not None else signal.SIGTERM
        return {"default": StoreUnavailableError("away")}

    work.round = round  # type: ignore[method-assign]
    quiet = Console(quiet=True)
    _continuously(work, Meter(quiet, "test"), signals, EventPrinter(quiet))
    assert next(failures, None) is None


def rounds(*results: dict[str, Any]) -> Compaction:
    """A compaction with these results, after which a signal comes."""
    signals = Signals()
    work = Compaction(LifecycleOptions(path="wal"), {}, True, None, RunOptions(interval=0.0))
    remaining = [*results]

    def round() -> dict[str, Any]:
        result = remaining.pop(0)
        signals.received = None if remaining else signal.SIGTERM
        return result

    work.round = round  # type: ignore[method-assign]
    quiet = Console(quiet=True)
    _continuously(work, Meter(quiet, "test"), signals, EventPrinter(quiet))
    assert not remaining
    return work


def test_continuously_a_damaged_log_stops_no_other() -> None:
    damage = InvalidLogError("a record is damaged")
    rounds({"a": damage, "b": Run("at rest")}, {"a": damage, "b": Run("at rest")})
    with pytest.raises(Failures, match="a record is damaged"):
        rounds({"a": damage, "b": damage}, {"a": damage, "b": damage})
    with pytest.raises(Failures, match="a record is damaged"):
        rounds({"default": damage}, {"default": damage})


@pytest.mark.parametrize("error", [PlanError("a copy"), OptionError("another type")])
def test_continuously_an_error_of_one_log_neither_stops_nor_slows_others(
    error: SparkWalError, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(compact, "_print", printed.append)
    rounds(*[{"a": error, "b": Run("at rest")}] * 3)
    # The last round ends with a signal.
    assert len(printed) == 2 and not any("tried again" in line for line in printed)


def test_continuously_a_log_that_vanished_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(compact, "_print", printed.append)
    gone = Run("no log", 7, 7)
    rounds({"a": Run("at rest"), "b": Run("at rest")}, *[{"a": Run("at rest"), "b": gone}] * 3)
    [line] = printed
    assert line.startswith("b: ") and "7" in line
    damage = InvalidLogError("a record is damaged")
    with pytest.raises(Failures, match="a record is damaged"):
        rounds({"a": damage, "b": gone}, {"a": damage, "b": gone})


@pytest.mark.process
def test_with_all_a_log_that_vanished_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "wal", range(10), name)
    arguments = ("wal", "--retain-bytes", "1kb", "--all")
    assert run(tmp_path, "compact", *arguments).returncode == 0
    shutil.rmtree(tmp_path / "wal" / "sequencers" / "b")
    again = run(tmp_path, "compact", *arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1].split()[:3] == ["b", "no", "log"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.capability("DELTA")
def test_a_log_goes_to_a_table_until_that_is_restored_and_on_when_it_is_accepted(
    tmp_path: Path,
) -> None:
    from deltalake import DeltaTable

    wal, lake = tmp_path / "wal", tmp_path / "lake"
    settings = ("wal", "lake", "--key", "id", "--late-arrive-window-seconds", "0")

    def rows() -> dict[int, str]:
        if not list((lake / "_delta_log").glob("*.json")):
            return {}
        table = DeltaTable(lake).to_pyarrow_table().cast(SCHEMA).to_pydict()
        return dict(zip(table["id"], table["v"], strict=True))

    expected = {n: f"v{n}" for n in range(7)}
    write(wal, range(4))
    with running(tmp_path, "compact", *settings, "--continuous", "--interval", "100ms") as job:
        job.until(lambda: len(rows()) == 4)
        write(wal, range(2, 7))  # two of them a second time
        job.until(lambda: rows() == expected)
        job.until(lambda: "range 2" in job.reported())
        DeltaTable(lake).restore(1)
        write(wal, range(1))
        job.until(lambda: "is a RESTORE" in job.reported())
        assert job.terminate() == 143
        assert "Traceback" not in job.reported()
    # A user repairs the table, moves it, and accepts it.
    DeltaTable(lake).restore(2)
    lake = lake.rename(tmp_path / "moved")
    settings = ("wal", "moved", *settings[2:])
    again = run(tmp_path, "compact", *settings, "--now")
    assert again.returncode == 2 and "--accept-table" in again.stderr
    again = run(tmp_path, "compact", *settings, "--accept-table", "--now")
    assert again.returncode == 0, again.stderr
    assert rows() == expected
    head, state = sparkwal.Log(str(wal)).head(), chain(wal)
    assert head is not None and state is not None and state.cut == head.position + 1
    # The report of collectable objects needs no JVM.
    reported = collect(tmp_path, "wal")
    assert reported.returncode == 0, reported.stderr
    assert "the grace" in reported.stdout and JVM_SAYS_FIRST not in reported.stderr
    other = run(tmp_path, "compact", "wal", "moved", "--now")
    assert other.returncode == 2 and "fixed its target" in other.stderr
    bare = run(tmp_path, "compact", "wal", "--retain", "7d")
    assert bare.returncode == 2 and "is compacted into" in bare.stderr


KEYS = {"access_key_id": "an-id", "secret_access_key": SECRET, "session_token": "a-token"}
# Prints what Spark knows of the keys, and the command line of its JVM.
_SESSION = f"""
from pathlib import Path
from sparkwal.options.store import StoreOptions
from sparkwal.spark.sessions import store_settings, start_session

log = StoreOptions("s3://bucket/wal", **{KEYS})
spark = start_session("test", settings=store_settings("s3a://bucket/lake", log))
known = spark._jsparkSession.sessionState().newHadoopConf()
print(*(known.get("fs.s3a." + name) for name in ("access.key", "secret.key", "session.token")))
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print(Path(f"/proc/{{pid}}/cmdline").read_bytes())
"""


@pytest.mark.spark
def test_keys_of_the_store_do_not_show_in_ps(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(_SESSION)
    found = {**os.environ, **classes.for_jobs(), "PYTHONPATH": str(JOBS)}
    done = subprocess.run([sys.executable, script], env=found, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known, command = done.stdout.splitlines()[-2:]
    assert known.split() == [*KEYS.values()] and "java" in command
    assert not any(key in command + done.stderr for key in KEYS.values())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.capability("DELTA")
def test_a_log_and_its_table_on_the_same_s3(
    tmp_path: Path, s3_path: tuple[str, dict[str, str]], s3_bucket: str
) -> None:
    path, options = s3_path
    write(path, range(9), **options)
    reach = [f"--log-option={name}={value}" for name, value in options.items()]
    lake = f"s3a://{s3_bucket}/lake"
    done = run(tmp_path, "compact", path, lake, "--now", *reach)
    assert done.returncode == 0, done.stderr
    current = sparkwal.Log(path, **options).current()
    assert current.table_version == 1 and sorted(current.to_pandas()["id"]) == [*range(9)]
    reported = collect(tmp_path, path, *reach)
    assert reported.returncode == 0, reported.stderr
    assert "the grace" in reported.stdout
    assert (
        options["secretAccessKey"]
        not in done.stdout + done.stderr + reported.stdout + reported.stderr
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.capability("DELTA")
def test_a_log_and_its_table_on_google(tmp_path: Path, fake_gcs_url: str) -> None:
    bucket, options = fake_gcs.new_bucket(fake_gcs_url), fake_gcs.options(fake_gcs_url)
    path = f"gs://{bucket}/log"
    write(path, range(9), **options)
    (jar,) = jars.fetch([jars.Module(*classes.GOOGLE)], tmp_path, transitive=False)
    reached = {
        "spark.jars": jar,
        "spark.hadoop.fs.gs.storage.root.url": f"{fake_gcs_url}/",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        "spark.hadoop.fs.gs.client.type": "HTTP_API_CLIENT",
        "spark.hadoop.fs.gs.project.id": "p",
    }
    flags = [f"--log-option={name}={value}" for name, value in options.items()]
    flags += [f"--conf={name}={value}" for name, value in reached.items()]
    done = run(tmp_path, "compact", path, f"gs://{bucket}/lake", "--now", *flags)
    assert done.returncode == 0, done.stderr
    current = sparkwal.Log(path, **options).current()
    assert current.table_version == 1 and sorted(current.to_pandas()["id"]) == [*range(9)]
