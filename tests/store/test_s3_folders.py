"""A LIST of folders names the logs under a path, and is trusted only if the store understood it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparkwal.store.base import Folders
from sparkwal.store.config import S3Config
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_replies import Unproven
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY
from sparkwal.testing.servers import s3_client as client_of

from . import inside
from .stub_s3 import CONFIG, Reply, Stub

PREFIX = "wal/sequencers/"


@pytest.fixture
def store(stub: Stub) -> S3Store:
    inside.forget_clients()
    return S3Store("bucket", replace(CONFIG, endpoint=stub.url))


def answered(
    folders: list[str], keys: Sequence[str] = (), *, more: bool = False, token: str = "more"
) -> Reply:
    """The reply to a LIST with these common prefixes and keys."""
    shown = "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders)
    others = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>" for key in keys
    )
    body = (
        f"<ListBucketResult><Name>bucket</Name><Prefix>{PREFIX}</Prefix>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        f"<NextContinuationToken>{token}</NextContinuationToken>{shown}{others}</ListBucketResult>"
    )
    return (200, {}, body.encode())


def batches(*names: str) -> list[str]:
    return [f"{PREFIX}{name}/batches/" for name in names]


def test_folders_and_other_keys_are_told_apart(stub: Stub, store: S3Store) -> None:
    keys = [f"{PREFIX}a/consumers/c", f"{PREFIX}refused/proof/x"]
    stub.replies = [answered([*batches("a", "b"), f"{PREFIX}x/sequencers/y/batches/"], keys)]
    assert store.folders(PREFIX, "batches") == Folders(["a", "b"], "")


def test_the_next_page_begins_after_the_last_folder(stub: Stub, store: S3Store) -> None:
    stub.replies = [answered(batches("a", "b"), more=True)]
    assert store.folders(PREFIX, "batches") == Folders(["a", "b"], f"{PREFIX}b0")
    # A key before the folder of its name: the folder may follow.
    stub.replies = [answered(batches("a"), [f"{PREFIX}b/a"], more=True)]
    assert store.folders(PREFIX, "batches") == Folders(["a"], f"{PREFIX}b/a")
    stub.replies = [answered(batches("a"), [f"{PREFIX}a/segments/1"], more=True)]
    assert store.folders(PREFIX, "batches") == Folders(["a"], f"{PREFIX}a0")


def test_an_empty_page_is_continued(stub: Stub, store: S3Store) -> None:
    stub.replies = [answered([], more=True), answered(batches("a"))]
    assert store.folders(PREFIX, "batches") == Folders(["a"], "")


@pytest.mark.parametrize(
    "reply",
    [
        # It takes "/" alone.
        answered([f"{PREFIX}a/", f"{PREFIX}b/"]),
        # It ignores the delimiter.
        answered([], [f"{PREFIX}a/batches/1", f"{PREFIX}a/batches/2"], more=True),
    ],
)
def test_a_store_without_such_delimiters_lists_no_folders(
    stub: Stub, store: S3Store, reply: Reply
) -> None:
    stub.replies = [reply]
    assert store.folders(PREFIX, "batches") is None


def test_a_list_that_begins_again_is_an_error(stub: Stub, store: S3Store) -> None:
    stub.replies = [answered(batches("a", "b"))]
    with pytest.raises(Unproven, match="shows"):
        store.folders(PREFIX, "batches", f"{PREFIX}a0")


def test_servers_list_folders(ministack_url: str, moto_url: str) -> None:
    for url in (ministack_url, moto_url):
        client = client_of(url)
        client.create_bucket(Bucket="folders")
        for name in ("a", "a-b", "a0", "b"):
            for key in ("batches/1", "batches/2", "consumers/c"):
                client.put_object(Bucket="folders", Key=f"{PREFIX}{name}/{key}", Body=b"")
        client.put_object(Bucket="folders", Key=f"{PREFIX}refused/proof/x", Body=b"")
        config = S3Config(
            endpoint=url, region=REGION, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
        )
        store = S3Store("folders", config)
        assert store.folders(PREFIX, "batches") == Folders(["a-b", "a", "a0", "b"], "")
        assert store.folders(PREFIX, "batches", f"{PREFIX}a0") == Folders(["a0", "b"], "")
