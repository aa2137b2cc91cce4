"""No secret is printed, logged, raised, or kept in an object."""

from __future__ import annotations

import io
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal import events
from sparkwal.cli.main import main
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.store.config import S3Config
from sparkwal.store.path import refuse_credentials
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import REGION, s3_client

SCHEMA = pa.schema([("v", pa.int64())])
CANARIES = {
    "accessKeyId": "AKIACANARYACCESSKEY",
    "secretAccessKey": "canary/secret+key/wJalrXUtnFEMI",
    "sessionToken": "canary//token//IQoJb3JpZ2luX2VjEAA",
}
PASSWORD = "canary-password-of-a-proxy"


def leaked(text: str | bytes) -> list[str]:
    shown = text if isinstance(text, bytes) else text.encode(errors="replace")
    return [each for each in (*CANARIES.values(), PASSWORD) if each.encode() in shown]


@pytest.fixture
def everything_said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """All that loggers, events and prints said since the test began, at DEBUG."""
    reported = io.StringIO()
    handler = logging.StreamHandler(reported)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    forget = events.subscribe(lambda event: reported.write(f"{event} {event!r}\n") and None)
    with redirect_stdout(reported), redirect_stderr(reported):
        yield reported.getvalue
    forget()
    root.setLevel(level)
    root.removeHandler(handler)


def work(path: str, options: dict[str, object], folder: Path) -> None:
    """A writer with a journal, readers, and a look at all of it."""
    with sparkwal.Appender(
        path, SCHEMA, producer_id="p", journal=str(folder / "journal"), **options
    ) as wal:
        wal.append([{"v": 1}]).result()
        print(repr(wal), wal)
    log = sparkwal.Log(path, **options)
    print(repr(log), log.head(), log.to_pandas(), list(log.records()))
    print(sparkwal.verify(path, **options))
    sparkwal.checkpoint(path, "q", folder=folder / "checkpoint", **options)


def failures(path: str, reach: dict[str, object]) -> list[tuple[dict[str, object], str]]:
    """Options, and an environment's setting, with which nothing works."""
    dead = {**reach, "endpoint": "http://127.0.0.1:1"}
    return [
        (dead, ""),
        ({**reach, "endpoint": f"http://user:{PASSWORD}@127.0.0.1:1"}, ""),
        ({**reach, "endpoint": f"http://127.0.0.1:1/?key={PASSWORD}"}, ""),
        ({**reach, "sequencer": "*"}, ""),
        ({**reach, "profile": "other"}, ""),
        ({**dead, "endpoint": "http://store.example"}, f"http://user:{PASSWORD}@127.0.0.1:1"),
    ]


def test_no_secret_is_said_or_kept(
    ministack_url: str,
    s3_proxy: S3Proxy,
    s3_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    everything_said: Callable[[], str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = f"s3://{s3_bucket}/log"
    reach: dict[str, object] = {
        "endpoint": s3_proxy.url,
        "region": REGION,
        **CANARIES,
        "maxRetryAttempts": 1,
        "retryBaseDelayMs": 1,
    }
    s3_proxy.faults = [
        Fault("lost_reply", kind="PUT", times=1),
        Fault("error", kind="GET", times=1, status=503),
        Fault("reset", kind="LIST", times=1),
    ]
    work(path, reach, tmp_path)
    raised = []
    for number, (wrong, proxy) in enumerate(failures(path, reach)):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with pytest.raises(sparkwal.SparkWalError) as failed:
            work(path, wrong, tmp_path / "none")
        raised.append(failed.value)
        with pytest.raises(sparkwal.SparkWalError) as failed:
            sparkwal.Log(f"{path}{number}", **wrong).head()
        raised.append(failed.value)
    monkeypatch.delenv("HTTP_PROXY")
    for status in (400, 403, 500):
        s3_proxy.faults = [Fault("error", status=status)]
        with pytest.raises(sparkwal.SparkWalError) as failed:
            work(path, reach, tmp_path)
        raised.append(failed.value)
    for error in raised:
        logging.getLogger("user").error("failed", exc_info=error)
        print(repr(error), "".join(traceback.format_exception(error)))
        print(pickle.dumps(error))
    for kind in (SinkOptions, SourceOptions):
        options = parse(kind, {"path": path, **{name: str(x) for name, x in reach.items()}})
        print(repr(options), options.s3, vars(S3Config()))
    said = everything_said()
    # The log has the requests at DEBUG level, and none of their contents.
    assert "botocore.endpoint DEBUG" in said and "x-amz-security-token:***" in said.lower()
    assert leaked(said) == []
    kept = {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    client = s3_client(ministack_url)
    for each in client.list_objects_v2(Bucket=s3_bucket)["Contents"]:
        kept[each["Key"]] = client.get_object(Bucket=s3_bucket, Key=each["Key"])["Body"].read()
    assert len(kept) > 5
    assert {name: found for name, data in kept.items() if (found := leaked(data))} == {}


def test_the_command_prints_no_secret(s3_path: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    path, reach = s3_path
    file = tmp_path / "options"
    given = {**reach, **CANARIES, "maxRetryAttempts": "0"}
    file.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))
    for extra in ([], ["--json"], ["--endpoint", "http://127.0.0.1:1"], ["--sequencer", "*"]):
        ended = CliRunner().invoke(main, ["status", path, "--options-file", str(file), *extra])
        assert ended.exit_code in (1, 2) and ended.output
        assert leaked(ended.output) == []


def test_an_options_file_that_others_may_write_is_refused_and_one_that_they_read_is_reported(
    tmp_path: Path,
) -> None:
    file = tmp_path / "options"
    keys = "".join(f"{name} = {value}\n" for name, value in CANARIES.items())
    with sparkwal.Appender(str(tmp_path / "log"), SCHEMA, producer_id="p") as wal:
        wal.append([{"v": 1}]).result()
    for mode, text, code, said in (
        (0o600, keys, 0, ""),
        (0o644, keys, 0, "holds secrets that each user of this machine may read"),
        (0o644, "region = eu-central-1\n", 0, ""),
        (0o666, "region = eu-central-1\n", 2, "each user of this machine may write to it"),
    ):
        file.write_text(text)
        file.chmod(mode)
        arguments = ["status", str(tmp_path / "log"), "--options-file", str(file)]
        ended = CliRunner().invoke(main, arguments)
        assert ended.exit_code == code and said in ended.output
        assert leaked(ended.output) == [] and (said != "") == ("chmod" in ended.output)


def test_a_tables_url_with_credentials_is_not_written_into_the_log(tmp_path: Path) -> None:
    from sparkwal.spark.delta_lifecycle import target_of

    with pytest.raises(sparkwal.OptionError, match="must hold no credentials") as refused:
        target_of(f"s3a://AKIA:{PASSWORD}@bucket/table")
    assert leaked(str(refused.value)) == []
    assert target_of("abfss://container@account.dfs.core.windows.net/table") is not None


@pytest.mark.parametrize(
    "url",
    [
        "s3a://AKIAX:SEC/RETKEY@bucket/t",
        "s3a://AKIAX:SEC@RETKEY@bucket/t",
        "s3a://AKIAX:SEC%2FRETKEY@bucket/t",
        "s3a://AKIAX:123/RETKEY@bucket/t",
        "s3a://RETKEY@bucket/t",
        "s3a://bucket/t?X-Amz-Signature=RETKEY",
        "abfss://c@account.dfs.core.windows.net/t?sig=RETKEY",
        "abfss://c:RETKEY@account.dfs.core.windows.net/t",
        "https://RETKEY@host/t",
        "https://host/t#RETKEY",
    ],
)
def test_a_url_that_may_hold_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(sparkwal.OptionError, match="must hold no credentials") as refused:
        refuse_credentials(url, "the table's URL")
    assert "RETKEY" not in str(refused.value)
    for path in (url, url.replace("s3a:", "s3:")):
        with pytest.raises(sparkwal.OptionError) as refused:
            sparkwal.Log(path)
        assert "RETKEY" not in str(refused.value)


@pytest.mark.parametrize("end", ["\r\nX-Evil: 1", " x", "\x7f", "\u20ac"])
def test_a_session_token_with_a_line_end_is_refused_without_showing_it(end: str) -> None:
    with pytest.raises(sparkwal.OptionError, match="sessionToken") as refused:
        sparkwal.Log(
            "s3://bucket/wal",
            accessKeyId="AKIAEXAMPLE",
            secretAccessKey="unused-secret",
            sessionToken=f"TOKENTOKEN{end}",
        )
    assert "TOKENTOKEN" not in str(refused.value)


def test_a_token_of_the_environment_with_a_line_end_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "unused-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKENTOKENTOKEN\r\nX-Evil: 1")
    caplog.set_level(logging.DEBUG)
    log = sparkwal.Log("s3://bucket/wal", endpoint="http://127.0.0.1:9", maxRetryAttempts=0)
    with pytest.raises(sparkwal.SparkWalError) as failed:
        log.head()
    shown = "".join(traceback.format_exception(failed.value))
    assert "TOKENTOKEN" not in shown and "TOKENTOKEN" not in caplog.text


@pytest.mark.parametrize("setting", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "endpoint_url"])
def test_a_password_in_the_endpoint_of_the_environment_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    setting: str,
) -> None:
    url = f"http://user:{PASSWORD}@127.0.0.1:1"
    file = tmp_path / "config"
    file.write_text(f"[default]\n{setting} = {url}\n" if setting.islower() else "")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    if setting.isupper():
        monkeypatch.setenv(setting, url)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(sparkwal.OptionError, match="must hold no credentials") as refused:
        sparkwal.Log("s3://bucket/wal", region="eu-central-1", maxRetryAttempts=7).head()
    shown = "".join(traceback.format_exception(refused.value))
    assert leaked(shown + caplog.text) == []


SPARK = Path(__file__).with_name("secret_session.py")


@pytest.mark.spark
@pytest.mark.slow
def test_spark_shows_no_secret_of_a_query(
    s3_path: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Plans, the event log that the UI is made from, its own log, checkpoints."""
    path, reach = s3_path
    given = {**reach, **CANARIES}
    source = str(Path(sparkwal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(SPARK), path, str(tmp_path)],
        input="\n".join(f"{name}={value}" for name, value in given.items()),
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": source,
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert leaked(done.stdout + done.stderr) == []
    assert "*********(redacted)" in done.stdout
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.stat().st_size for file in (tmp_path / "events").rglob("*"))
    assert {str(file): found for file in files if (found := leaked(file.read_bytes()))} == {}
