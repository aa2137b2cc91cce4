"""The doctor of a stream: real stores, folders and logs, and what is wrong with each."""

from __future__ import annotations

import configparser
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli import doctor
from sparkwal.cli.main import main
from sparkwal.options.spark_versions import INSTALL
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import s3_client
from tests.logs import append

# It asks Java and the workers' Python for their versions.
pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path(sparkwal.__file__).parents[1]), prepend=os.pathsep)


def asked(path: str, options: dict[str, str], *arguments: str) -> tuple[int, list[dict[str, str]]]:
    """The exit code and the lines."""
    given = [
        word
        for name, value in options.items()
        if name != "endpoint"
        for word in ("--log-option", f"{name}={value}")
    ]
    endpoint = ["--endpoint", options["endpoint"]] if "endpoint" in options else []
    result = CliRunner().invoke(main, ["doctor", path, *endpoint, *given, *arguments, "--json"])
    return result.exit_code, json.loads(result.output)["lines"]


def to_do(lines: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    return [
        (each["about"], f"{each['said']} {each['advice']}")
        for each in lines
        if each["outcome"] == "to do"
    ]


def said(lines: Sequence[dict[str, str]], about: str) -> str:
    return "; ".join(each["said"] for each in lines if each["about"] == about)


def test_a_sound_log_on_s3_needs_no_action(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    path, options = s3_path
    append(path, 1, **options)
    before = s3_client(options["endpoint"]).list_objects_v2(Bucket=path.split("/")[2])["KeyCount"]
    code, lines = asked(path, options, "--checkpoint", str(tmp_path / "checkpoint"))
    assert (code, to_do(lines)) == (0, [])
    assert "explicit" in said(lines, "credentials")
    assert "one winner each" in said(lines, "put-if-absent, raced")
    assert said(lines, "permission") == "no action that a writer needs is denied"
    assert "alive" in said(lines, "leader")
    assert "the query starts from the beginning" in said(lines, "checkpoint")
    after = s3_client(options["endpoint"]).list_objects_v2(Bucket=path.split("/")[2])["KeyCount"]
    assert after == before
    # The writer was not fenced: its next run continues in the same term or takes over.
    assert sparkwal.verify(path, **options).ok


def test_the_output_for_people_holds_no_secret(s3_path: tuple[str, dict[str, str]]) -> None:
    path, options = s3_path
    arguments = [
        word
        for name, value in (options | {"secretAccessKey": "hush"}).items()
        if name != "endpoint"
        for word in ("--log-option", f"{name}={value}")
    ]
    result = CliRunner().invoke(
        main, ["doctor", path, "--endpoint", options["endpoint"], *arguments]
    )
    assert result.exit_code == 0, result.output
    assert result.output.endswith("nothing to do\n")
    assert "hush" not in result.output


def test_a_missing_bucket_and_a_missing_server_are_named(
    s3_path: tuple[str, dict[str, str]],
) -> None:
    _, options = s3_path
    code, lines = asked("s3://no-such-bucket/wal", options)
    assert code == 1
    assert any(about == "bucket" and "create the bucket" in what for about, what in to_do(lines))
    code, lines = asked("s3://bucket/wal", options | {"endpoint": "http://127.0.0.1:9"})
    assert code == 1
    assert any("nothing answers" in what for _, what in to_do(lines))


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("LIST", "s3:ListBucket"),
        ("PUT", "s3:PutObject"),
        ("GET", "s3:GetObject"),
        ("ABORT_MULTIPART", "s3:AbortMultipartUpload"),
        ("DELETE", "s3:DeleteObject"),
    ],
)
def test_a_missing_permission_is_named(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy, kind: str, action: str
) -> None:
    path, options = s3_path
    s3_proxy.faults = [Fault("error", kind=kind, status=403)]
    code, lines = asked(path, options | {"endpoint": s3_proxy.url})
    assert code == 1
    assert any(action in what for about, what in to_do(lines) if about in ("bucket", "permission"))


def test_a_reader_has_nothing_to_do(s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy) -> None:
    path, options = s3_path
    s3_proxy.faults = [
        Fault("error", kind=kind, status=403) for kind in ("PUT", "DELETE", "CREATE_MULTIPART")
    ]
    code, lines = asked(path, options | {"endpoint": s3_proxy.url})
    assert (code, to_do(lines)) == (0, [])
    assert "a writer needs s3:PutObject" in said(lines, "permission")


def test_a_forbidden_request_is_no_error(
    s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy
) -> None:
    path, options = s3_path
    s3_proxy.faults = [Fault("error", kind="OTHER", status=403)]
    code, lines = asked(path, options | {"endpoint": s3_proxy.url})
    assert (code, to_do(lines)) == (0, [])
    assert "no permission to ask" in said(lines, "versioning")


@pytest.mark.parametrize(("prefix", "harmful"), [("", True), ("log/", True), ("other/", False)])
def test_a_rule_that_expires_objects_of_the_log_is_named(
    s3_path: tuple[str, dict[str, str]], prefix: str, harmful: bool
) -> None:
    path, options = s3_path
    rule = {
        "ID": "thirty",
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "Expiration": {"Days": 30},
    }
    s3_client(options["endpoint"]).put_bucket_lifecycle_configuration(
        Bucket=path.split("/")[2], LifecycleConfiguration={"Rules": [rule]}
    )
    code, lines = asked(path, options)
    assert code == int(harmful), lines
    assert any("thirty deletes" in what for _, what in to_do(lines)) is harmful


def test_settings_and_checkpoints_that_cost_requests_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    code, lines = asked(
        path,
        {},
        "--checkpoint",
        "s3a://bucket/checkpoint",
        "--spark-conf",
        "asyncProgressTrackingEnabled=true",
    )
    assert code == 1
    assert {about for about, _ in to_do(lines)} == {"checkpoint", "progress tracking"}
    assert "48 requests" in said(lines, "checkpoint")
    # As below a folder that may not be entered, a look at such a name is an error.
    code, lines = asked(path, {}, "--checkpoint", f"{tmp_path}/{'x' * 300}/checkpoint")
    assert code == 0 and "the query starts from the beginning" in said(lines, "checkpoint")
    assert not (tmp_path / "log").exists()


def test_a_workers_python_without_sparkwal_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / f"python-{uuid.uuid4().hex}"
    fake.write_text("#!/bin/sh\necho False\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(fake))
    code, lines = asked(str(tmp_path / "log"), {})
    assert code == 1
    ((about, what),) = to_do(lines)
    assert (about, sys.executable in what) == ("workers' Python", True)


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark, as far as its jars have names."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    return jars


def versions_of(
    pyspark: str, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str] | None = None
) -> dict[str, doctor.Line]:
    monkeypatch.setattr(doctor, "_version", lambda name: {"pyspark": pyspark}.get(name))
    return {line.about: line for line in doctor.versions(conf or {})}


def test_capabilities_that_this_spark_lacks_are_named(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spark_home / "spark-core_2.13-4.0.4.jar").touch()
    spark = versions_of("4.0.4", monkeypatch)["Spark"]
    assert spark.outcome == "ok"
    assert spark.said.startswith("pyspark 4.0.4; it lacks declarative pipelines (Spark 4.1)")
    assert "limits of a stream's first microbatch (Spark 4.2)" in spark.said
    (spark_home / "spark-core_2.13-4.0.4.jar").unlink()
    assert versions_of("4.2.1", monkeypatch)["Spark"].said == "pyspark 4.2.1"
    untried = versions_of("4.9.0", monkeypatch)["Spark"]
    assert (untried.outcome, "the newest that was tried" in untried.said) == ("unknown", True)


def test_another_spark_in_spark_home_is_named(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spark_home / "spark-core_2.13-4.0.4.jar").touch()
    spark = versions_of("4.2.0", monkeypatch)["Spark"]
    assert spark.outcome == "to do"
    assert spark.said == f"pyspark 4.2.0 starts the Spark 4.0.4 of SPARK_HOME, {spark_home.parent}"


def test_the_version_of_delta_lake_is_named(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "spark.jars.packages=io.delta:delta-spark_4.1_2.13:4.4.0"
    none = versions_of("4.1.4", monkeypatch)["Delta Lake"]
    assert (none.outcome, none.said.endswith(package)) == ("unknown", True)
    conf = {"spark.jars.packages": "io.delta:delta-spark_4.0_2.13:4.4.0,a:b:1"}
    other = versions_of("4.1.4", monkeypatch, conf)["Delta Lake"]
    assert (other.outcome, other.said) == ("to do", "4.4.0 for Spark 4.0, and this is 4.1.4")
    assert other.advice == package
    (spark_home / "delta-spark_4.1_2.13-4.4.0.jar").touch()
    assert versions_of("4.1.4", monkeypatch)["Delta Lake"] == doctor.ok("Delta Lake", "4.4.0")
    none = versions_of("4.3.0", monkeypatch)["Delta Lake"]
    assert none.outcome == "unknown" and "sparkwal.Log(path).current()" in none.said


def test_a_damaged_head_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), 1)
    newest = min((path / "batches").iterdir())
    newest.write_bytes(b"damaged" + newest.read_bytes()[7:])
    code, lines = asked(str(path), {})
    assert code == 1
    assert [about for about, _ in to_do(lines)] == ["log"]
    assert newest.name in said(lines, "log")


def test_a_record_from_the_future_is_reported_as_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong date stays: timestamps never go back, so retention by age waits for it."""
    append(f"{tmp_path}/log", 1)
    assert not to_do(asked(f"{tmp_path}/log", {})[1])
    hour_ago = time.time_ns() - 3_600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: hour_ago)
    ((about, text),) = to_do(asked(f"{tmp_path}/log", {})[1])
    assert about == "clock" and "min ahead of this machine" in text


def test_the_advised_versions_are_those_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[2] / "setup.cfg")
    asked_for = "\n".join(config["options.extras_require"].values())
    asked_for += config["options"]["install_requires"]
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1")
    lines = {line.about: line.advice for line in doctor.versions({})}
    assert lines["Spark"] == INSTALL
    for name in ("pyarrow", "botocore", "deltalake"):
        assert lines[name].removeprefix("pip install ").strip("'") in asked_for.split()
