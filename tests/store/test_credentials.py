"""Credentials that change while a writer runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwal.errors import OptionError
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

from .stub_s3 import Reply, Stub, error


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a profile's keys are in."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write(file, "OLDKEY")
    return file


def write(file: Path, key: str) -> None:
    file.write_text(
        f"[mine]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n"
    )


def opened(stub: Stub, **given: str) -> RetryingStore:
    config = S3Config(endpoint=stub.url, region="us-east-1", **given)  # type: ignore[arg-type]
    return RetryingStore(S3Store("bucket", config), RetryPolicy(), sleep=lambda _: None)


def keys_used(stub: Stub) -> list[str]:
    signed = (headers["authorization"] for _, _, headers in stub.requests)
    return [re.findall(r"Credential=(\w+)/", each)[0] for each in signed]


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "InvalidAccessKeyId"])
def test_rotated_credentials_are_read_again(stub: Stub, profile: Path, code: str) -> None:
    store = opened(stub, profile="mine")
    stub.replies = [(200, {}, b""), error(400, code), (200, {}, b""), (200, {}, b"")]
    assert store.put_if_absent("a", b"")
    write(profile, "NEWKEY")
    assert store.put_if_absent("b", b"")
    assert store.put_if_absent("c", b"")
    assert keys_used(stub) == ["OLDKEY", "OLDKEY", "NEWKEY", "NEWKEY"]


def test_rotated_credentials_are_read_again_for_gets(stub: Stub, profile: Path) -> None:
    """The first of a client and the later ones, which are made in another way."""
    store = opened(stub, profile="mine")
    found: list[Reply] = [(200, {}, b"%d" % number) for number in range(5)]
    stub.replies = [found[0], found[1], error(400, "ExpiredToken"), *found[2:]]
    assert [store.get(key) for key in ("a", "b")] == [b"0", b"1"]
    write(profile, "NEWKEY")
    assert [store.get(key) for key in ("c", "d", "e")] == [b"2", b"3", b"4"]
    assert keys_used(stub) == ["OLDKEY"] * 3 + ["NEWKEY"] * 3


def test_credentials_that_stay_expired_are_an_error_at_once(stub: Stub, profile: Path) -> None:
    stub.replies = [error(400, "ExpiredToken")]
    with pytest.raises(OptionError, match="the credentials expired; renew them"):
        opened(stub, profile="mine").put_if_absent("a", b"")
    assert keys_used(stub) == ["OLDKEY"]


def test_credentials_of_options_cannot_be_read_again(stub: Stub, profile: Path) -> None:
    stub.replies = [error(400, "ExpiredToken")]
    store = opened(stub, access_key_id="MYKEY", secret_access_key="s", session_token="t")
    with pytest.raises(
        OptionError, match="reads the keys of a profile again, but not keys in options"
    ):
        store.put_if_absent("a", b"")
    assert keys_used(stub) == ["MYKEY"]


def test_a_profile_that_was_removed_before_it_is_read_again(stub: Stub, profile: Path) -> None:
    store = opened(stub, profile="mine")
    stub.replies = [error(400, "ExpiredToken")]
    with store.store.request("a"):  # type: ignore[attr-defined]
        profile.write_text("")
    with pytest.raises(OptionError, match="mine"):
        store.put_if_absent("a", b"")
