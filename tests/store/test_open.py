"""Paths: which store they name, and which are refused."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from sparkwal.errors import OptionError
from sparkwal.format.keys import join_key
from sparkwal.options.open import journal_folder, open_log
from sparkwal.options.parsing import from_keywords, parse
from sparkwal.options.writing import SinkOptions
from sparkwal.store import path as store_path
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.open import open_store
from sparkwal.store.path import absolute, check_spelling


def opened(path: str) -> tuple[str, str]:
    store, prefix = open_store(path, S3Config(endpoint="http://localhost:1"), RetryPolicy())
    return store.url, prefix


@pytest.mark.parametrize(
    ("path", "url", "prefix"),
    [
        ("s3://bucket/a/b", "http://localhost:1/bucket", "a/b"),
        ("s3a://bucket/a/b//", "http://localhost:1/bucket", "a/b"),
        ("S3://bucket/a", "http://localhost:1/bucket", "a"),
        ("gs://bucket/a/b", "http://localhost:1/bucket", "a/b"),
        ("s3://bucket", "http://localhost:1/bucket", ""),
        ("s3://bucket/", "http://localhost:1/bucket", ""),
        ("file:///x/y/", "file:///x/y", ""),
        ("file:/x/y", "file:///x/y", ""),
        ("file://localhost/x", "file:///x", ""),
        ("/x//y/../z", "file:///x/z", ""),
    ],
)
def test_a_path_gives_its_store_and_prefix(path: str, url: str, prefix: str) -> None:
    assert opened(path) == (url, prefix)


def test_relative_path_is_made_absolute() -> None:
    assert opened("some/log") == (f"file://{Path.cwd()}/some/log", "")


def test_aws_is_named_by_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    assert open_store("s3://bucket/a", None, RetryPolicy())[0].url == "s3://bucket"


def test_endpoint_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:2")
    assert open_store("s3://bucket/a", None, RetryPolicy())[0].url == "http://localhost:2/bucket"


def test_endpoints_of_the_environment_can_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:2")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert open_store("s3://bucket/a", None, RetryPolicy())[0].url == "s3://bucket"


@pytest.mark.parametrize(
    ("path", "expected_message"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("s3://", "no bucket"),
        ("s3:///a", "no bucket"),
        ("s3:/bucket/a", "no bucket"),
        ("s3://b!cket/a", "bucket name"),
        ("s3://a..b/a", "bucket name"),
        ("s3://bucket/a//b", "empty segment"),
        ("s3://bucket/../b", "'..'"),
        ("s3://bucket//a", "empty segment"),
        ("s3://bucket/a\tb", "unprintable"),
        ("s3://logs--use1-az4--x-s3/a", "directory bucket"),
        ("s3n://bucket/a", "write s3://bucket"),
        ("S3N://bucket/a", "write s3://bucket"),
        ("s3:bucket/a", "no bucket"),
        ("gs://B/a", "no bucket name"),
        ("hdfs://host/x", "supported are s3://"),
        ("dbfs:/mnt/x", "supported are s3://"),
        ("file://elsewhere/x", "elsewhere"),
        ("file://~/x", "the host '~'"),
        ("file:", "names no folder"),
        ("/x\0y", "zero byte"),
        ("s3://arn:aws:s3:eu-west-1:111122223333:accesspoint/ap/wal", "s3://alias/folder"),
    ],
)
def test_a_wrong_path_is_refused(path: str, expected_message: str) -> None:
    with pytest.raises(OptionError, match=expected_message.replace(".", r"\.")):
        opened(path)


@pytest.mark.parametrize(
    ("path", "expected_message"),
    [
        ("~/wal", r"write /home/me/wal\. .* write \./~/wal"),
        ("~", r"write /home/me\."),
        ("file:~/wal", r"write /home/me/wal\."),
        ("~nobody-of-this-name/wal", "write the whole path"),
        ("$HOME/wal", "begins with a variable"),
        ("${HOME}/wal", "begins with a variable"),
        ("%TEMP%\\wal", "begins with a variable"),
        ("C:\\data\\wal", "a path of Windows"),
        ("c:/data/wal", "a path of Windows"),
        ("file:C:/data", "a path of Windows"),
        ("\\\\server\\share", "a path of Windows"),
        ("/dbfs/wal", "this machine has no /dbfs"),
        ("file:/Volumes/a/b/c", "this machine has no /Volumes"),
    ],
)
def test_a_name_that_another_program_replaces_becomes_no_folder(
    path: str, expected_message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for parsed in (lambda: from_keywords(SinkOptions, path, {}), lambda: absolute(path)):
        with pytest.raises(OptionError, match=expected_message):
            parsed()
    with pytest.raises(OptionError, match=expected_message):
        journal_folder(path, "s3://bucket/wal")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["./~/wal", "a~/wal", "a$b", "./C:/wal", "dbfs", "Volumes/x"])
def test_an_odd_name_may_be_a_folder(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_log(from_keywords(SinkOptions, path, {})).url == f"file://{tmp_path / path}"


def test_a_mounted_folder_of_databricks_may_hold_a_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(store_path, "_MOUNTS", (str(tmp_path),))
    check_spelling(f"{tmp_path}/wal")


def test_a_percent_encoded_url_names_no_other_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my wal"
    with pytest.raises(OptionError, match=rf"percent-encoded.* either {folder} or "):
        from_keywords(SinkOptions, folder.as_uri(), {})
    plain = tmp_path / "my%20wal"
    assert open_log(from_keywords(SinkOptions, str(plain), {})).url == f"file://{plain}"
    assert open_log(from_keywords(SinkOptions, f"file://{folder}", {})).url == f"file://{folder}"


def test_opening_creates_nothing(tmp_path: Path) -> None:
    open_store(str(tmp_path / "log"), None, RetryPolicy())
    assert list(tmp_path.iterdir()) == []


def test_join_key_joins_parts_and_refuses_bad_ones() -> None:
    assert join_key("", "batches", "1") == "batches/1"
    assert join_key("a/b", "batches", "1") == "a/b/batches/1"
    for bad in ("a//b", "/a", "a/", "a/../b", "."):
        with pytest.raises(OptionError):
            join_key(bad, "x")


S3 = {"endpoint": "http://store:9000"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("s3://bbb/wal", S3), ("s3a://bbb/wal/", S3)),
        (("s3://bbb/wal", S3), ("S3://bbb/wal//", S3)),
        (("s3://bbb/wal", S3), (" s3://bbb/wal", {"endpoint": "http://STORE:9000/"})),
        (("s3://bbb/x", {"endpoint": "http://h"}), ("s3://bbb/x", {"endpoint": "http://h:80/"})),
        (("s3://bbb/x", {"endpoint": "https://h"}), ("s3://bbb/x", {"endpoint": "HTTPS://h:443"})),
        (
            ("s3://bbb/x", {"endpoint": "http://[::1]:80"}),
            ("s3://bbb/x", {"endpoint": "http://[::1]"}),
        ),
        (("s3://bbb/x", {}), ("s3://bbb/x", {"endpoint": "https://s3.eu-west-1.amazonaws.com"})),
        (("s3://bbb/x", {}), ("s3://bbb/x", {"endpoint": "https://s3.amazonaws.com/"})),
        (("s3://bbb/x/sequencers/a", {}), ("s3://bbb/x", {"sequencer": "a"})),
        (("/x/wal", {}), ("/x/y/../wal/", {})),
        (("/x/wal", {}), ("file:/x/./wal", {})),
        (("/x/wal", {}), ("FILE:///x//wal", {})),
        (("wal", {}), ("file:wal", {})),
        (("wal", {}), (str(Path("wal").absolute()), {})),
        (("/x/wal/sequencers/a", {}), ("/x/wal", {"sequencer": "a"})),
    ],
)
def test_one_log_spelled_two_ways_is_one_log(
    one: tuple[str, dict[str, str]],
    other: tuple[str, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert identity(*one) == identity(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("s3://bbb/wal", S3), ("s3://bbb/wal", {})),
        (("s3://bbb/wal", S3), ("s3://bbb/wal", {"endpoint": "http://store:9001"})),
        (("s3://bbb/wal", S3), ("s3://bbb/wal", {"endpoint": "https://store:9000"})),
        (("s3://bbb/wal", S3), ("s3://bbb/wal", {"endpoint": "http://store:9000/tenant"})),
        (("s3://bbb/wal", S3), ("s3://bbb/WAL", S3)),
        (("s3://bbb/wal", S3), ("s3://ccc/wal", S3)),
        (("s3://bbb/wal", {"profile": "one"}), ("s3://bbb/wal", {"profile": "two"})),
        (("/x/wal", {}), ("/x/wal2", {})),
    ],
)
def test_two_logs_are_never_one(
    one: tuple[str, dict[str, str]], other: tuple[str, dict[str, str]]
) -> None:
    assert identity(*one) != identity(*other)


def test_a_symbolic_link_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert identity(f"{tmp_path}/link/wal", {}) == identity(f"{tmp_path}/disk/wal", {})


def test_an_identity_holds_no_secret() -> None:
    keys = {"accessKeyId": "AKIAKEY", "secretAccessKey": "s3cr3t", "sessionToken": "t0k3n"}
    named = identity("s3://bbb/wal", {**S3, **keys})
    assert named == identity("s3://bbb/wal", S3)
    assert not any(key in named for key in keys.values())


def identity(path: str, options: dict[str, str]) -> str:
    return open_log(from_keywords(SinkOptions, path, options)).identity


@pytest.mark.parametrize(
    "credentials",
    [
        {"path": "s3://AKIAKEY:s3cr3t@bucket/wal"},
        {"path": "s3a://AKIAKEY:s3/cr3t@bucket/wal"},
        {"path": "s3://AKIAKEY:s3cr3t"},
        {"path": "s3://s3cr3t@bucket"},
        {"path": "s3:/AKIAKEY:s3cr3t@bucket/wal"},
        {"path": "s3n://AKIAKEY:s3cr3t@bucket/wal"},
        {"path": "http://AKIAKEY:s3cr3t@host/wal"},
        {"path": "hdfs://me:s3cr3t@host/wal"},
        {"path": "file://me:s3cr3t@host/wal"},
        {"endpoint": "http://AKIAKEY:s3cr3t@host:9000"},
        {"endpoint": "AKIAKEY:s3cr3t@host:9000"},
        {"endpoint": "http://host/?X-Amz-Signature=s3cr3t"},
        {"endpoint": "ftp://host/#s3cr3t"},
    ],
)
def test_credentials_in_a_url_are_refused_and_never_shown(credentials: dict[str, str]) -> None:
    options = {"path": "s3://bucket/wal", **credentials}
    for attempt in (
        lambda: parse(SinkOptions, options),
        lambda: open_store(options["path"], None, RetryPolicy()),
        lambda: S3Config(endpoint=options.get("endpoint")),
    ):
        try:
            attempt()
        except OptionError as refused:
            shown = "".join(traceback.format_exception(refused)) + repr(refused)
            assert "s3cr3t" not in shown and "AKIAKEY" not in shown
            assert "\n" not in str(refused)
        else:
            # The path is not the endpoint's to refuse, nor the endpoint the path's.
            continue
    with pytest.raises(OptionError):
        parse(SinkOptions, options)


def test_an_endpoint_of_the_environment_shows_no_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://AKIAKEY:s3cr3t@host")
    with pytest.raises(OptionError, match="no credentials") as refused:
        open_store("s3://bucket/wal", None, RetryPolicy())
    assert "s3cr3t" not in str(refused.value)
