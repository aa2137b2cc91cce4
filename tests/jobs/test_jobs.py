"""The jobs as a user runs them: a process each, with its exit code and its output."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pyspark
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.format.header import CommitHeader, LeaderHeader
from sparkwal.options.spark_versions import delta_package
from tests.jobs.lives import JOBS, command, refused, run, run_here, running

ROOT = JOBS.parent
SECRET = "7h1s-must-not-be-shown"


def json_files(folder: Path, files: int, rows: int, first: int = 0) -> list[tuple[int, str | None]]:
    """Writes files of lines; returns all rows in order. Every tenth name is missing."""
    folder.mkdir(exist_ok=True)
    expected = []
    for file in range(first, first + files):
        part = [(file * rows + n, f"naïve {n}" if n % 10 else None) for n in range(rows)]
        lines = (json.dumps({"id": i, "name": name}) for i, name in part)
        (folder / f"{file}.json").write_text("\n".join(lines), encoding="utf-8")
        os.utime(folder / f"{file}.json", (1_700_000_000 + file,) * 2)
        expected += part
    return expected


def a_log(path: Path, writer: str = "p") -> None:
    """A log of three rows in one record."""
    with sparkwal.Appender(str(path), pa.schema([("v", pa.int64())]), producer_id=writer) as wal:
        wal.append([{"v": 1}, {"v": 2}, {"v": 3}])


def submit(cwd: Path, job: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a job by spark-submit with no settings."""
    import pyspark

    script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    kept = {k: v for k, v in os.environ.items() if k not in ("SPARK_CONF_DIR", "SPARK_HOME")}
    return subprocess.run(
        [str(script), "--master", "local[1]", *command(job, *arguments)[1:]],
        cwd=cwd,
        env={**kept, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.spark
def test_replay_reads_a_log_into_nothing_as_documented(tmp_path: Path) -> None:
    a_log(tmp_path / "wal")
    replayed = run(tmp_path, "replay", "--log", "wal", "--format", "noop")
    assert replayed.returncode == 0, replayed.stderr
    assert "3 rows of wal" in replayed.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_under_spark_submit_a_job_prints_only_its_own_lines(
    tmp_path: Path,
) -> None:
    a_log(tmp_path / "wal")
    replayed = submit(tmp_path, "replay", "--log", "wal")
    assert replayed.returncode == 0, replayed.stderr
    # spark-submit passes on all that Python prints as standard output.
    assert "3 rows of wal" in replayed.stdout and "|3  |" in replayed.stdout
    assert " INFO " not in replayed.stderr


@pytest.mark.spark
def test_delta_under_spark_submit_asks_for_its_packages(tmp_path: Path) -> None:
    a_log(tmp_path / "wal")
    refused = submit(tmp_path, "replay", "--log", "wal", "--format", "delta", "--output", "out")
    assert refused.returncode == 2, refused.stderr
    [line] = [line for line in refused.stdout.splitlines() if line.startswith("Error: ")]
    assert f"spark-submit --packages {delta_package(pyspark.__version__)} …" in line
    assert "Traceback" not in refused.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_jars_come_too_late_under_spark_submit(tmp_path: Path) -> None:
    refused = submit(tmp_path, *INGEST, "--jars", "connector.jar")
    assert refused.returncode == 2, refused.stderr
    assert "Error: --jars here is too late: give it to spark-submit" in refused.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_a_failed_download_of_the_connector_is_named_in_the_error(tmp_path: Path) -> None:
    failed = run(
        tmp_path,
        "ingest",
        "--format",
        "kafka",
        *INGEST[3:],
        PYSPARK_SUBMIT_ARGS="--conf spark.jars.ivySettings=missing.xml pyspark-shell",
    )
    assert failed.returncode == 1, failed.stderr
    reported = failed.stderr.split("Error: ")[-1]
    assert reported.startswith("Spark did not start: the download of a connector failed, or Java")
    assert "missing.xml" in failed.stderr  # Spark's own words, above


@pytest.mark.process
@pytest.mark.parametrize("job", ["ingest", "replay", "compact", "http_ingest", "quickstart"])
def test_a_missing_package_is_named_in_one_line(tmp_path: Path, job: str) -> None:
    bare = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    failed = subprocess.run(
        [sys.executable, "-S", str(JOBS / f"{job}.py")],
        cwd=tmp_path,
        env=bare,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("sparkwal is not installed") and "jobs/quickstart.sh" in line


def test_files_to_log_to_parquet_also_when_the_disk_is_lost_between(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """json → ingest → log → replay → parquet is the identity, order included.

    A named ingest continues at the end of the log.
    """
    source, log = tmp_path / "in", tmp_path / "wal"
    expected = json_files(source, files=3, rows=100)
    options = tmp_path / "options.conf"
    example = (ROOT / "conf" / "options.example.conf").read_text()
    options.write_text(f"{example}\ninlineThreshold = 0\n")
    ingest = [
        *("ingest", "--format", "json", "--source", source, "--log", log, "--name", "orders"),
        *("--schema", "id BIGINT, name STRING", "--max-files-per-trigger", 1),
        *("--options-file", options),
    ]
    first = run_here(spark, monkeypatch, *ingest, XDG_STATE_HOME=str(tmp_path / "one machine"))
    assert first.exit_code == 0, first.output
    assert "300 rows in 3 microbatches" in first.output
    assert "rebuilt from the log" not in first.output
    shutil.rmtree(tmp_path / "one machine")
    expected += json_files(source, files=1, rows=100, first=3)
    second = run_here(spark, monkeypatch, *ingest, XDG_STATE_HOME=str(tmp_path / "another"))
    assert second.exit_code == 0, second.output
    output = " ".join(second.output.split())
    assert "orders continues after microbatch 2 with a checkpoint rebuilt from the log" in output
    assert "100 rows in 1 microbatches" in second.output
    records = list(sparkwal.Log(str(log)).records())
    commits = [record for record in records if isinstance(record, CommitHeader)]
    assert [record.rows for record in commits] == [100] * 4
    # The options file was obeyed.
    assert all(record.batches and not record.inline for record in commits)
    rows = sparkwal.Log(str(log)).scan().read_all().to_pydict()
    assert list(zip(rows["id"], rows["name"], strict=True)) == expected

    replay = [
        *("replay", "--log", log, "--from", commits[1].position, "--files", 1),
        *("--columns", "id,name,_wal_position"),
        *("--format", "parquet", "--output", tmp_path / "out"),
    ]
    replayed = run_here(spark, monkeypatch, *replay)
    assert replayed.exit_code == 0, replayed.output
    assert "300 rows" in replayed.output
    found = pyarrow.parquet.read_table(tmp_path / "out").to_pydict()
    assert list(zip(found["id"], found["name"], strict=True)) == expected[100:]
    positions = [record.position for record in commits[1:] for _ in range(100)]
    assert found["_wal_position"] == positions


@pytest.mark.spark
@pytest.mark.parametrize("lives", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sigterm_drains_and_the_next_run_continues(tmp_path: Path, lives: int) -> None:
    """SIGTERM while microbatches run → 143; the checkpoint owes nothing to the log, and
    after the next run the log holds every value exactly once."""
    arguments = (
        "--format",
        "rate-micro-batch",
        "--option",
        "rowsPerBatch=50",
        "--log",
        "wal",
        "--checkpoint",
        "checkpoint",
        "--trigger",
        "0 seconds",
    )

    def commits() -> list[CommitHeader]:
        records = sparkwal.Log(str(tmp_path / "wal")).records()
        return [record for record in records if isinstance(record, CommitHeader)]

    for _ in range(lives):
        least = 3 + (len(commits()) if (tmp_path / "wal").exists() else 0)
        with running(tmp_path, "ingest", *arguments) as job:
            job.until(lambda n=least: (tmp_path / "wal").exists() and len(commits()) >= n)
            assert job.terminate() == 128 + signal.SIGTERM, job.reported()
            assert "Traceback" not in job.reported()
        # Spark has committed every microbatch of the log: the last one was not cut off.
        done = {int(p.name) for p in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")}
        assert {record.batch_id for record in commits()} == done
    values = sparkwal.Log(str(tmp_path / "wal")).scan(columns=["value"]).read_all()["value"]
    assert sorted(values.to_pylist()) == list(range(50 * len(commits())))
    leaders = [
        r.term for r in sparkwal.Log(str(tmp_path / "wal")).records() if isinstance(r, LeaderHeader)
    ]
    assert leaders == [*range(1, lives + 1)]


@pytest.mark.spark
def test_quickstart_proves_equality_and_continues(tmp_path: Path) -> None:
    """A small quickstart, stopped in the middle; a second one refuses the taken path."""
    arguments = ("--rows", 2000, "--files", 4, "--path", tmp_path / "wal")
    first = run(tmp_path, "quickstart", *arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Proven: 2,000 flights, each exactly once, in order" in " ".join(first.stdout.split())
    log = sparkwal.Log(str(tmp_path / "wal"))
    records = list(log.records())
    batches = [record.batch_id for record in records if isinstance(record, CommitHeader)]
    assert batches == [0, 1, 2, 3]
    assert log.scan(columns=["seq"]).read_all()["seq"].to_pylist() == list(range(2000))
    terms = [record.term for record in records if isinstance(record, LeaderHeader)]
    assert terms == [1, 2]
    assert "Now the checkpoint is deleted" in " ".join(first.stdout.split())
    _, _, reported = first.stdout.partition("Try these next:\n")
    *lines, _ = reported.strip().splitlines()
    assert len(lines) == 4
    for line in lines:
        tried = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=120)
        assert tried.returncode == 0 and tried.stdout, line + tried.stderr
    taken = run(tmp_path, "quickstart", *arguments)
    assert taken.returncode == 2, taken.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_that_fails_ends_with_1_and_one_message(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.parquet").write_text("not parquet")
    failed = run(
        tmp_path,
        "ingest",
        "--format",
        "parquet",
        "--source",
        "in",
        "--log",
        "wal",
        "--schema",
        "id BIGINT",
        "--checkpoint",
        "checkpoint",
    )
    assert failed.returncode == 1, failed.stderr
    assert "x.parquet" in failed.stderr.split("Error: ")[-1]
    assert "Traceback" not in failed.stderr and "\tat " not in failed.stderr.split("Error: ")[-1]


TO_LOG = ("ingest", "--format", "rate", "--log", "wal")
INGEST = (*TO_LOG, "--checkpoint", "checkpoint")
STRANGER = "1b4e28ba-2fa1-4a4c-9d7e-1f0c5a7c7f55"
KNOWN = "9f0e2d0c-54a1-4f7c-8f43-0a4f6f0a4c11"
REPLAY = ("replay", "--log", "wal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*INGEST, "--log-option", "batchSizeTreshold=1mb"), "did you mean 'batchSizeThreshold'?"),
        ((*INGEST, "--log-option", f"secretAccessKey={SECRET}"), "go together"),
        ((*INGEST, "--log-option", SECRET), "--log-option number 1 is not NAME=VALUE"),
        ((*INGEST, "--log-option", "startingPosition=1"), "is for reading"),
        ((*INGEST, "--options-file", "broken.conf"), "line 2 of broken.conf"),
        ((*INGEST, "--infer-schema"), "are for files"),
        (TO_LOG, "give --name, by which this query continues where it ended, or --checkpoint"),
        ((*INGEST, "--name", "orders"), "not both"),
        ((*TO_LOG, "--name", " "), "name is ' '; a short printable text is expected"),
        ((*TO_LOG, "--log", "known", "--name", KNOWN), "nothing of its checkpoint"),
        ((*INGEST, "--trigger", "soon"), "'soon' is neither available-now nor"),
        ((*INGEST, "--checkpoint", "broken.conf"), "the checkpoint broken.conf is a file"),
        ((*INGEST, "--checkpoint", "used"), "the checkpoint used belongs to another log"),
        ((*INGEST, "--checkpoint", "used", "--log", "other"), "and other has none of them"),
        (("ingest", "--format", "json", *INGEST[3:]), "needs --source"),
        (("ingest", "--format", "json", "--source", "in", *INGEST[3:]), "needs --schema DDL"),
        (REPLAY, "there is no log at wal"),
        ((*REPLAY, "--format", "json"), "needs --output"),
        ((*REPLAY, "--from", "9", "--to", "3"), "lies before startingPosition"),
        ((*REPLAY, "--from-time", "noon"), "a time such as"),
        ((*REPLAY, "--stream", "--format", "json", "--output", "out"), "needs --checkpoint"),
        ((*REPLAY, "--stream", "--to", "3"), "a stream has no end"),
        ((*REPLAY, "--checkpoint", "x"), "--checkpoint is for --stream"),
    ],
)
def test_wrong_usage_ends_with_2_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "broken.conf").write_text(f"# fine\n{SECRET}\n")
    (tmp_path / "used" / "commits").mkdir(parents=True)
    (tmp_path / "used" / "metadata").write_text(f'{{"id":"{STRANGER}"}}')
    (tmp_path / "used" / "commits" / "0").touch()
    a_log(tmp_path / "other")
    a_log(tmp_path / "known", KNOWN)
    code, printed = refused(monkeypatch, tmp_path, *arguments)
    assert code == 2, printed
    assert message in printed and SECRET not in printed


@pytest.mark.process
@pytest.mark.parametrize("job", ["ingest", "replay", "compact"])
def test_help_lists_the_exit_codes(tmp_path: Path, job: str) -> None:
    helped = run(tmp_path, job, "--help")
    assert helped.returncode == 0
    assert "Exit codes:" in helped.stdout and "143 stopped by SIGTERM" in helped.stdout
