"""Real stores before the suite: one that looks first and writes later is not a sound one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from sortedcontainers import SortedDict

from sparkwal.cli.main import main
from sparkwal.store.base import Store
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.conformance.checks import CHECKS, QUICK
from sparkwal.store.conformance.suite import Check, Report, Trial, prove
from sparkwal.store.local import LocalStore
from sparkwal.store.s3 import S3Store
from sparkwal.testing.faults import Fault
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import Server, ServerError, log_options, make_bucket, s3_client
from tests.sorted_s3 import Handler, serve

from .s3proxy import NEW, OLD, start_s3proxy

# Its jars come once, some 30 MB.
pytestmark = pytest.mark.timeout(900)
SMALL = Trial(rounds=4, threads=8, seed=7)


def at(url: str) -> S3Store:
    """A new bucket."""
    bucket = f"prove-{uuid.uuid4().hex}"
    make_bucket(url, bucket)
    return S3Store(bucket, config(url))


def config(url: str) -> S3Config:
    return S3Config(
        endpoint=url, region="us-east-1", access_key_id="WHO", secret_access_key="SESAME"
    )


def proxy_of(version: str) -> Server:
    try:
        return start_s3proxy(version)
    except ServerError as error:
        if "UNRESOLVED DEPENDENCIES" in str(error) or "cannot be started" in str(error):
            pytest.skip(f"S3Proxy's jars need Java and Maven Central: {str(error)[:200]}")
        raise


@pytest.fixture(scope="module")
def old() -> Iterator[str]:
    with proxy_of(OLD) as server:
        yield server.url


@pytest.fixture(scope="module")
def new() -> Iterator[str]:
    with proxy_of(NEW) as server:
        yield server.url


def report_of(
    stores: Sequence[Store], prefix: str, trial: Trial, checks: Sequence[Check] = CHECKS
) -> Report:
    return Report(tuple(prove(stores, prefix, trial, checks)))


def wrong(report: Report) -> list[str]:
    return [each.check for each in report.findings if each.outcome != "ok"]


@pytest.mark.slow
def test_ministack_is_fit_and_nothing_is_left(ministack_url: str) -> None:
    store = at(ministack_url)
    report = report_of([store], "log", SMALL)
    assert (wrong(report), report.verdict) == ([], "FIT")
    assert store.list("").entries == []
    assert store.unfinished("").uploads == []


@pytest.mark.slow
@pytest.mark.s3
def test_s3proxy_4_is_fit(new: str) -> None:
    report = report_of([at(new)], "log", Trial(rounds=2, threads=8, seed=7))
    assert (wrong(report), report.verdict) == ([], "FIT")


@pytest.mark.slow
@pytest.mark.s3
def test_s3proxy_3_loses_every_race(old: str) -> None:
    for seed in range(5):
        report = report_of([at(old)], "log", Trial(4, 8, seed), checks=QUICK)
        assert report.verdict == "NOT FIT"
        assert "a slow put and a fast one" in wrong(report)
        assert "overwrite each other's commits" in report.sentence


@pytest.mark.slow
def test_moto_loses_a_race_of_uploads(moto_url: str) -> None:
    # 7 of 46 raced keys showed it; the check stops at the first.
    uploads = [each for each in CHECKS if each.name in ("put-if-absent", "multipart, raced")]
    report = report_of([at(moto_url)], "log", Trial(rounds=60, seed=3), checks=uploads)
    assert (wrong(report), report.verdict) == (["multipart, raced"], "NOT FIT")


def test_a_store_in_memory_and_a_folder_are_fit(tmp_path: Path) -> None:
    memory = MemoryStore("memory://fit", concurrency=8)
    assert report_of([memory], "log", SMALL).verdict == "FIT"
    assert memory.objects == {}
    report = report_of([LocalStore(tmp_path / "wal")], "", SMALL)
    assert report.fit
    assert not (tmp_path / "wal").exists()


def test_two_endpoints_of_one_store_are_fit_and_of_two_are_not(
    ministack_url: str, s3_proxy: S3Proxy
) -> None:
    first = at(ministack_url)
    second = S3Store(first.bucket, config(s3_proxy.url))
    assert report_of([first, second], "log", SMALL).verdict == "FIT"
    assert s3_proxy.counts()["PUT"] > 0
    other = at(ministack_url)
    report = report_of([first, other], "log", SMALL)
    assert "endpoints" in wrong(report)
    assert not report.fit


@pytest.mark.slow
def test_conflicts_are_repeated_and_decided(ministack_url: str, s3_proxy: S3Proxy) -> None:
    s3_proxy.faults = [
        Fault("error", kind="PUT", key_contains="-race", status=409, probability=0.1),
        Fault("error_after", kind="PUT", key_contains="-race", status=409, probability=0.1),
    ]
    store = at(ministack_url)
    report = report_of([S3Store(store.bucket, config(s3_proxy.url))], "log", SMALL)
    assert report.verdict == "FIT"
    (said,) = [each.found for each in report.findings if each.check == "conflicts (409)"]
    assert "409 ConditionalRequestConflict" in said


def test_the_command_prints_the_verdict_and_no_secret(ministack_url: str) -> None:
    store = at(ministack_url)
    keys = ["--log-option", "accessKeyId=t", "--log-option", "secretAccessKey=hush-hush"]
    arguments = [
        "prove-store",
        f"s3://{store.bucket}/wal",
        "--endpoint",
        ministack_url,
        *keys,
        "--rounds",
        "2",
        "--threads",
        "4",
        "--seed",
        "5",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "FIT for a log: every check passed." in result.output
    assert "seed 5" in result.output
    assert "hush" not in result.output
    reported = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert (reported["fit"], reported["seed"]) == (True, 5)
    assert {each["outcome"] for each in reported["checks"]} == {"ok"}


def asked_alone(name: str) -> Report:
    """The answer of the sorted server to one check."""
    with serve(SortedDict()) as url:
        checks = [each for each in CHECKS if each.name == name]
        return report_of([S3Store("bucket", config(url))], "log", SMALL, checks=checks)


def test_a_store_that_keeps_half_a_body_is_a_limit() -> None:
    # The sorted server keeps what came before the connection ended.
    report = asked_alone("a put that breaks off")
    assert (wrong(report), report.verdict) == (["a put that breaks off"], "FIT WITH LIMITS")
    assert "16 of 32 bytes" in report.findings[0].found


def test_a_store_whose_replies_prove_nothing_is_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Handler.answer

    def without_etag(self: Handler, status: int, body: bytes = b"", **headers: str) -> None:
        headers.pop("ETag", None)
        answer(self, status, body, **headers)

    monkeypatch.setattr(Handler, "answer", without_etag)
    monkeypatch.setattr("sparkwal.store.conformance.suite._PATIENT", RetryPolicy(0))
    report = asked_alone("replies")
    assert report.verdict == "NOT FIT"
    assert "PUT was answered without ETag" in report.findings[0].found


def test_no_bucket_is_no_verdict(ministack_url: str) -> None:
    arguments = [
        "prove-store",
        "s3://absent-bucket/wal",
        "--endpoint",
        ministack_url,
        "--log-option",
        "accessKeyId=t",
        "--log-option",
        "secretAccessKey=t",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code in (1, 2)
    assert "create the bucket" in result.output
    assert CliRunner().invoke(main, ["prove-store", "gopher://x"]).exit_code == 2


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_stopped_proof_leaves_nothing(
    ministack_url: str, s3_proxy: S3Proxy, signum: signal.Signals
) -> None:
    store = at(ministack_url)
    command = [
        sys.executable,
        "-m",
        "sparkwal",
        "prove-store",
        f"s3://{store.bucket}/wal",
        "--endpoint",
        s3_proxy.url,
        "--rounds",
        "10000",
    ]
    for name, value in log_options(s3_proxy.url).items():
        if name != "endpoint":
            command += ["--log-option", f"{name}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while s3_proxy.counts()["PUT"] < 100:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signum)
    process.communicate()
    assert process.returncode == 128 + signum
    reply = s3_client(ministack_url).list_objects_v2(Bucket=store.bucket)
    assert reply["KeyCount"] == 0
