"""bench: it writes a log of its own, measures, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.shown import SOURCE, append, ids, run

import sparkwal
from sparkwal.cli.bench import Bench, deleted_after
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import log_options, s3_client

QUICK = ["--seconds", "0.3", "--in-flight", "4", "--rows-per-append", "10"]


def figures(*arguments: object) -> dict[str, Any]:
    began, *_, ended = run("bench", *arguments, "--json").splitlines()
    reported: dict[str, Any] = json.loads(ended)
    assert json.loads(began)["path"] == reported["path"]
    return reported


def test_what_it_tells_and_that_nothing_is_left(tmp_path: Path) -> None:
    append(tmp_path / "wal", 1, 2)
    reported = figures(tmp_path / "wal", *QUICK, "--row-bytes", 50)
    assert reported["rows"] == reported["appends"] * 10 > 0
    assert 0 < reported["p50_ms"] <= reported["p99_ms"] <= reported["max_ms"]
    assert reported["read"]["rows_per_s"] > 0 and reported["retries"] == 0
    assert reported["requests"]["PUT"] <= reported["appends"]
    # A log at the path is as it was.
    assert [each.name for each in (tmp_path / "wal").iterdir() if "bench" in each.name] == []
    assert ids("cat", tmp_path / "wal") == [1, 2]
    figures(tmp_path / "new", *QUICK)
    assert not (tmp_path / "new").exists()


def test_a_log_that_is_kept_is_one_like_any_other(tmp_path: Path) -> None:
    reported = figures(tmp_path, *QUICK, "--keep")
    assert sparkwal.verify(reported["path"]).rows == reported["rows"]


def test_it_says_that_it_writes_and_where(tmp_path: Path) -> None:
    printed = run("bench", tmp_path, *QUICK)
    assert "a million rows" in printed and "p99" in printed and "read back" in printed
    assert "WRITES" in run("bench", "--help")
    assert "own" in run("bench", tmp_path, "--sequencer", "x", code=2)
    refused = run("bench", "gopher://x", code=2)
    assert "no supported store" in refused and "writes to" not in refused
    assert "64 MB" in run("bench", tmp_path, "--rows-per-append=1000000", code=2)


@pytest.mark.s3
def test_its_requests_are_those_that_the_store_got(
    s3_bucket: str, s3_proxy: S3Proxy, ministack_url: str
) -> None:
    client = s3_client(ministack_url)
    client.put_object(Bucket=s3_bucket, Key="logs/_bench-other/x", Body=b"somebody else's")
    given = [f"--log-option={k}={v}" for k, v in log_options(s3_proxy.url).items()]
    s3_proxy.faults = [Fault("error", kind="PUT", status=503, probability=0.05)]
    reported = figures(f"s3://{s3_bucket}/logs", *QUICK, *given)
    # The proof that the store is one, and the leader record, come before.
    puts = [each for each in s3_proxy.requests if each.kind == "PUT" and "/batches/" in each.key]
    assert 0 <= len(puts) - reported["requests"]["PUT"] <= 8
    assert reported["retries"] <= sum(s3_proxy.injected.values())
    left = [each["Key"] for each in client.list_objects_v2(Bucket=s3_bucket)["Contents"]]
    assert left == ["logs/_bench-other/x"]


@pytest.mark.s3
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(
    s3_bucket: str, ministack_url: str, signum: signal.Signals
) -> None:
    given = [f"--log-option={k}={v}" for k, v in log_options(ministack_url).items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "sparkwal", "bench", f"s3://{s3_bucket}/logs", *given,
         "--seconds", "60", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    path = json.loads(process.stdout.readline())["path"]
    client = s3_client(ministack_url)
    prefix = path.removeprefix(f"s3://{s3_bucket}/")
    while client.list_objects_v2(Bucket=s3_bucket, Prefix=prefix)["KeyCount"] < 5:
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signum)
    assert process.wait(60) == 128 + signum
    assert client.list_objects_v2(Bucket=s3_bucket)["KeyCount"] == 0


def test_what_is_written_while_it_is_deleted_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(str(tmp_path / "_bench-1"), {})
    late = [tmp_path / "_bench-1" / "batches"]

    def rmtree(path: str, ignore_errors: bool) -> None:
        real(path, ignore_errors=ignore_errors)
        if late:  # a PUT that was under way
            late.pop().mkdir(parents=True)

    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with deleted_after(bench, keep=False):
        late[0].mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_none_is_refused_before_anything_is_written() -> None:
    for path in ("", "http://x", "s3:/x"):
        assert "writes to" not in run("bench", path, "--seconds", "1", code=2)


def test_a_delete_that_is_stopped_says_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(path: str, ignore_errors: bool) -> None:
        raise KeyboardInterrupt

    bench = Bench(str(tmp_path / "_bench-1"), {})
    monkeypatch.setattr(shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt), deleted_after(bench, keep=False):
        pass
    assert f"not all of {bench.path} is deleted" in capsys.readouterr().err
