"""Paths: which store they name, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.errors import OptionError
from sparkwal.store.open import join_key, open_store
from sparkwal.store.retry import RetryPolicy
from sparkwal.store.s3 import S3Config


def opened(path: str) -> tuple[str, str]:
    store, prefix = open_store(path, S3Config(endpoint="http://localhost:1"), RetryPolicy())
    return store.url, prefix


@pytest.mark.parametrize(
    ("path", "url", "prefix"),
    [
        ("s3://bucket/a/b", "http://localhost:1/bucket", "a/b"),
        ("s3a://bucket/a/b//", "http://localhost:1/bucket", "a/b"),
        ("S3://bucket/a", "http://localhost:1/bucket", "a"),
        ("s3://bucket", "http://localhost:1/bucket", ""),
        ("s3://bucket/", "http://localhost:1/bucket", ""),
        ("file:///x/y/", "file:///x/y", ""),
        ("file:/x/y", "file:///x/y", ""),
        ("file://localhost/x", "file:///x", ""),
        ("/x//y/../z", "file:///x/z", ""),
    ],
)
def test_paths(path: str, url: str, prefix: str) -> None:
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


@pytest.mark.parametrize(
    ("path", "said"),
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
        ("gs://bucket/a", "supported are s3://"),
        ("abfss://c@a/x", "supported are s3://"),
        ("hdfs://host/x", "supported are s3://"),
        ("dbfs:/mnt/x", "supported are s3://"),
        ("file://elsewhere/x", "elsewhere"),
        ("/x\0y", "zero byte"),
    ],
)
def test_refused_paths(path: str, said: str) -> None:
    with pytest.raises(OptionError, match=said.replace(".", r"\.")):
        opened(path)


def test_nothing_is_created_by_opening(tmp_path: Path) -> None:
    open_store(str(tmp_path / "log"), None, RetryPolicy())
    assert list(tmp_path.iterdir()) == []


def test_join_key() -> None:
    assert join_key("", "batches", "1") == "batches/1"
    assert join_key("a/b", "batches", "1") == "a/b/batches/1"
    for bad in ("a//b", "/a", "a/", "a/../b", "."):
        with pytest.raises(OptionError):
            join_key(bad, "x")
