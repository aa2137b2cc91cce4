"""GETs of Azure and Google that are sent before their replies are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sparkwal.store.azure import AzureStore
from sparkwal.store.config import RetryPolicy
from sparkwal.store.google import GoogleStore
from sparkwal.store.parallel import Range, get_many
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3_replies import Unproven
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy

from . import azurite, fake_gcs

CLOUDS = {
    "azure": ("azurite_url", azurite.new_store),
    "google": ("fake_gcs_url", fake_gcs.new_store),
}
Opened = tuple[AzureStore | GoogleStore, S3Proxy]

pytestmark = pytest.mark.process


@pytest.fixture(params=CLOUDS)
def opened(request: pytest.FixtureRequest) -> Any:
    """An own, empty store, and the proxy in front of it."""
    server, new = CLOUDS[request.param]
    new_store: Callable[[str], Any] = new
    with S3Proxy(request.getfixturevalue(server)) as proxy:
        yield new_store(proxy.url), proxy


def read(store: AzureStore | GoogleStore, names: list[str]) -> dict[str, bytes | None]:
    retrying = RetryingStore(store, RetryPolicy(base_delay_ms=1))
    return dict(get_many(retrying, ((name, Range(name, 0, 100)) for name in names)))


def test_many_objects_take_one_request_each(opened: Opened) -> None:
    store, proxy = opened
    bodies: dict[str, bytes | None] = {f"p/{n:03d}": b"%d" % n for n in range(60)}
    for name, body in bodies.items():
        assert body is not None
        store.put(name, body)
    assert read(store, [*bodies]) == bodies
    proxy.reset()
    assert read(store, [*bodies]) == bodies
    assert proxy.counts() == Counter(GET=60)
    # An idle connection takes a request, and its reply is read later.
    first, second = (store.send_range(name, 1, 2) for name in ("p/010", "p/059"))
    assert first is not None and second is not None
    assert (second.read(None), first.read(None)) == (b"9", b"0")


def test_missing_and_empty_objects_are_asked_for_again(opened: Opened) -> None:
    store, _ = opened
    store.put("a", b"x")
    store.put("empty", b"")
    names = ["a", "absent", "empty", "a"]
    for _ in range(2):
        assert read(store, names) == {"a": b"x", "absent": None, "empty": b""}


@pytest.mark.parametrize("action", ["truncate", "lost_reply", "error"])
def test_a_reply_that_breaks_off_is_asked_for_again(opened: Opened, action: Any) -> None:
    store, proxy = opened
    names = [f"p/{n}" for n in range(20)]
    for name in names:
        store.put(name, name.encode())
    read(store, names)
    proxy.faults = [Fault(action, kind="GET", times=5, status=503)]
    assert read(store, names) == {name: name.encode() for name in names}
    assert sum(proxy.injected.values()) == 5


def test_another_servers_page_is_no_object(opened: Opened) -> None:
    store, proxy = opened
    store.put("k", b"x" * 300)
    # An answer 200 without the headers of the cloud.
    proxy.faults = [Fault("error", kind="GET", times=1, status=200)]
    store.list("")
    sent = store.send_range("k", 0, 100)
    assert sent is not None
    with pytest.raises(Unproven):
        sent.read(None)
    assert read(store, ["k"]) == {"k": b"x" * 100}
