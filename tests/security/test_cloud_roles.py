"""The roles of conf/azure/ and conf/google/: each role's real work stays within its own.

No server of tests checks roles. So these tests record the requests, and ask the roles' files.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from sparkwal.store.base import all_entries
from sparkwal.testing.proxy import S3Proxy, Sent
from tests.docs.cloud_roles import BLOBS, CONF, INSPECTOR, assignments, files
from tests.security.clouds import Assignment, AzureCalls, Call, GoogleCalls, assigned
from tests.security.roles import CONSUMER, WITHOUT_SPARK, Place, furnish
from tests.store import azurite, fake_gcs

PREFIX = "team/wal"
WRITES = ("writer", "compactor", "collector", "consumer")
LATER = [pytest.mark.slow]


def test_the_files_are_made_from_the_policies() -> None:
    made = files()
    stored = [*CONF.glob("azure/*"), *CONF.glob("google/*")]
    found = {f"{file.parent.name}/{file.name}": file.read_text() for file in stored}
    assert found == made, "run python -m tests.docs.cloud_roles"


def worked(role: str, path: str, root: dict[str, str], there: Any, folder: Path) -> list[Call]:
    """What a role's work asks of a server, one call for each permission."""
    furnish(Place(path, root, folder / "furnish"))
    calls = there()
    seen: list[Call] = []

    def watch(sent: Sent, status: int) -> None:
        seen.extend(calls.of(sent, status))

    server, _, rest = root["endpoint"].partition("://")[2].partition("/")
    with S3Proxy(f"http://{server}") as proxy:
        proxy.watch = watch
        endpoint = f"{proxy.url}/{rest}".rstrip("/")
        WITHOUT_SPARK[role](Place(path, {**root, "endpoint": endpoint}, folder))
    return seen


def granted(cloud: str, role: str, bucket: str) -> list[Assignment]:
    places = {"BUCKET": bucket, "PREFIX": PREFIX, "NAME": CONSUMER}
    own = [f"{name}-{kind}" for name, kind, _ in assignments() if name == role]
    settings = INSPECTOR[cloud == "google"] if role == "operator" else ()
    inspects = Assignment(settings, lambda _, call: not call.key, "")
    return [*(assigned(cloud, name, places) for name in ("reads", *own)), inspects]


def unused(role: str, seen: list[Call]) -> list[str]:
    """The places of a role where its work changes nothing, or deletes nothing and may."""
    left = []
    for name, kind, patterns in assignments():
        words = ("write", "create") if kind == "creates" else ("delete",)
        for pattern in patterns if name == role else ():
            place = pattern.replace("PREFIX", PREFIX).replace("NAME", CONSUMER)
            if not any(
                call.permission.endswith(words) and fnmatchcase(call.key, place) for call in seen
            ):
                left.append(f"{kind}: {pattern}")
    return left


def beyond(seen: list[Call], granted: list[Assignment]) -> set[Call]:
    return {call for call in seen if not any(each.allows(call) for each in granted)}


@pytest.mark.parametrize("role", WITHOUT_SPARK)
def test_a_role_on_azure_allows_its_requests(role: str, azurite_url: str, tmp_path: Path) -> None:
    container = azurite.new_container(azurite_url)
    path = f"abfss://{container}@{azurite.ACCOUNT}.dfs.core.windows.net/{PREFIX}"
    seen = worked(role, path, azurite.options(azurite_url), AzureCalls, tmp_path)
    assert beyond(seen, granted("azure", role, container)) == set()
    assert unused(role, seen) == []


# On Google an overwrite is a delete too; reads are the same on both clouds.
@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=LATER * (role not in WRITES)) for role in WITHOUT_SPARK]
)
def test_a_role_on_google_allows_its_requests(role: str, fake_gcs_url: str, tmp_path: Path) -> None:
    bucket = fake_gcs.new_bucket(fake_gcs_url)
    store = fake_gcs.GoogleStore(bucket, fake_gcs.config(fake_gcs_url))

    def there() -> GoogleCalls:
        return GoogleCalls({entry.key for entry in all_entries(store, "")})

    path = f"gs://{bucket}/{PREFIX}"
    seen = worked(role, path, fake_gcs.options(fake_gcs_url), there, tmp_path)
    assert beyond(seen, granted("google", role, bucket)) == set()
    assert unused(role, seen) == []


READS = {"azure": f"{BLOBS}/read", "google": "storage.objects.get"}
LISTS = {"azure": f"{BLOBS}/read", "google": "storage.objects.list"}
WRITE = {"azure": f"{BLOBS}/write", "google": "storage.objects.create"}
DELETES = {"azure": f"{BLOBS}/delete", "google": "storage.objects.delete"}


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_a_role_refuses_what_is_not_its_own(cloud: str) -> None:
    def may(role: str, permission: dict[str, str], key: str, *, is_list: bool = False) -> bool:
        call = Call(permission[cloud], key, is_list)
        return any(each.allows(call) for each in granted(cloud, role, "b"))

    assert may("writer", WRITE, f"{PREFIX}/batches/1")
    assert may("writer", DELETES, f"{PREFIX}/handover/1")
    assert not may("writer", DELETES, f"{PREFIX}/batches/1")
    assert not may("writer", WRITE, f"{PREFIX}/lifecycle/1")
    assert not may("writer", WRITE, "other/wal/batches/1")
    assert not may("compactor", DELETES, f"{PREFIX}/segments/1")
    assert may("collector", DELETES, f"{PREFIX}/segments/1")
    assert not may("collector", WRITE, f"{PREFIX}/consumers/daily")
    for name, own in ((CONSUMER, True), ("other", False), (f"{CONSUMER}2", False)):
        assert may("consumer", DELETES, f"{PREFIX}/consumers/{name}") is own
    assert may("reader", READS, f"{PREFIX}/batches/1")
    assert not may("reader", READS, f"{PREFIX}2/batches/1")
    assert not may("reader", WRITE, f"{PREFIX}/batches/1")
    assert may("reader", LISTS, f"{PREFIX}/batches/", is_list=True)
    assert not may("reader", LISTS, "team/", is_list=True)
