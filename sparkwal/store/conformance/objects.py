"""What objects do: put once, read back, age, be deleted; be listed, all and in byte order, at
once."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import PART_SIZE, Entry, NotFound
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Wrong, content
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel

_TOP = 2**64 - 1
# Between the clocks' ticks of a store and of this machine.
_TICK_MS = 50
_NETWORKED = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gpfs", "glusterfs", "afs")


def keep_first(tested: StoreUnderTest, first: bytes, *others: bytes) -> None:
    store, key = tested.store, tested.key()
    try:
        created = store.put_if_absent(key, first)
    except (StoreUnavailableError, OptionError) as error:
        # Where nothing was stored nothing is left: removing it would fail once more.
        if not getattr(error, "maybe_applied", False):
            tested.keys.remove(key)
        raise
    # A False whose content is ours is our own put after a lost reply.
    if not created and content(store, key) != first:
        raise Wrong("it refused to create an object at a free key")
    if any(store.put_if_absent(key, other) for other in others):
        raise Wrong("it accepted a second put at a taken key")
    if content(store, key) != first:
        raise Wrong("a refused put changed the object all the same")


def first_put_wins(tested: StoreUnderTest) -> Found:
    for first in (tested.body(100), b""):
        keep_first(tested, first, tested.body(100), first, tested.body(100_000))
    return "the first put created the object, 3 others were refused and changed nothing"


def read_after_write(tested: StoreUnderTest) -> Found:
    """What was written, overwritten and deleted is read so at once, at each endpoint."""
    stores, count = tested.retrying, 20

    def ask(number: int) -> None:
        ours, other = stores[number % len(stores)], stores[(number + 1) % len(stores)]
        key, first, second = keys[number], b"first %d" % number, b"second %d" % number
        if content(other, key) is not None:
            raise Wrong("an object is there before it was written")
        ours.put_if_absent(key, first)
        if content(other, key) != first:
            raise Wrong("an object that was just created is not there")
        ours.put(key, second)
        if content(other, key) != second:
            raise Wrong("a GET after an overwrite gives what was there before")
        ours.delete(key)
        if content(other, key) is not None:
            raise Wrong("an object that was just deleted is still there")

    keys = [tested.key("read") for _ in range(count)]
    for _ in run_parallel(tested.store, ask, range(count)):
        pass
    return f"{count} keys: created, overwritten and deleted objects were read so at once"


def deletes(tested: StoreUnderTest) -> Found:
    """One DELETE and one DeleteObjects, of absent keys too; a freed key can be taken again."""
    store = tested.store
    kept, freed = tested.key("kept"), tested.key("freed")
    odd = [tested.key(name) for name in ("a&b", "a'b", "a b", "a+b", "a%25b")]
    count = 1000 if tested.trial.thorough else 20
    absent = [tested.key("absent") for _ in range(count - len(odd))]
    for key in [kept, freed, *odd]:
        store.put(key, b"x")
    for _ in range(2):
        store.delete_many([*odd, *absent])
        store.delete(freed)
    if any(content(store, key) is not None for key in [freed, *odd]):
        raise Wrong("an object that was deleted is still there")
    if content(store, kept) is None:
        raise Wrong("a delete of many removed an object that it did not name")
    if not store.put_if_absent(freed, b"again") and content(store, freed) != b"again":
        raise Wrong("a key that was freed cannot be taken again")
    return f"one, and {count} in one request; absent ones are no error; a freed key can be taken"


def ranges(tested: StoreUnderTest) -> Found:
    """Any part of an object, up to its end and beyond."""
    store, key, body = tested.store, tested.key(), tested.body(1000)
    store.put_if_absent(key, body)
    for offset, length in ((0, 1000), (0, 1), (10, 20), (990, 100), (999, 1), (1000, 5), (5000, 5)):
        if store.get_range(key, offset, length) != body[offset : offset + length]:
            raise Wrong(f"{length} bytes from {offset} of 1000 are not those of the object")
    try:
        store.get_range(tested.key("absent"), 0, 1)
    except NotFound:
        return "parts, the end, and beyond it"
    raise Wrong("a range of an absent object is there")


def age(tested: StoreUnderTest) -> Found:
    """An object is never older than it can be."""
    oldest = 0
    for body in (b"", b"x" * 1000):
        key, before = tested.key("age"), time.monotonic()
        tested.store.put_if_absent(key, body)
        found = tested.store.age_ms(key)
        passed = (time.monotonic() - before) * 1000
        if not 0 <= found <= passed + _TICK_MS:
            raise Wrong(f"an object is {found} ms old {passed:.0f} ms after it was put")
        oldest = max(oldest, found)
    try:
        tested.store.age_ms(tested.key("absent"))
    except NotFound:
        return f"Last-Modified and Date agree (a new object is {oldest} ms old)"
    raise Wrong("an absent object has an age")


def key_characters(tested: StoreUnderTest) -> Found:
    """Names that URLs and XML write in other ways."""
    store, folder = tested.store, f"{tested.key('names')}/"
    names = ["a b", "a+b", "a%20b", "a&b<c>", "a'\"b", "é", "日本", "😀", "a=b", "a,b;c", "a?b#c",
             "a!(b)*~", "a@b:c", "[a]{b}", "x" * 200]  # fmt: skip
    for name in names:
        store.put_if_absent(folder + name, name.encode())
    for name in names:
        if content(store, folder + name) != name.encode():
            raise Wrong(f"the object named {name[:20]!r} is not there, or another one is")
    listed = [entry.key.removeprefix(folder) for entry in store.list(folder).entries]
    if missing := [name for name in names if name not in listed]:
        raise Wrong(f"LIST names {missing[0][:20]!r} otherwise")
    if listed != sorted(names, key=str.encode):
        raise Wrong("LIST is not in byte order")
    return f"{len(names)} odd names are kept and listed as they are"


def big_object(tested: StoreUnderTest) -> Found:
    """One PUT of more than 8 MiB, and an upload in parts that came in another order."""
    store, key, body = tested.store, tested.key("big"), tested.body(PART_SIZE + 12_345)
    store.put_if_absent(key, body)
    if store.get(key) != body:
        raise Wrong("one PUT of 8 MiB does not come back as it was written")
    key = tested.key("parts")
    upload = store.upload(key)
    try:
        upload.part(2, PART_SIZE, body[PART_SIZE:])
        upload.part(1, 0, body[:PART_SIZE])
        if store.list(key).entries:
            raise Wrong("an upload shows before it is complete")
        # A False whose content is ours is our own Complete after a lost reply.
        upload.complete()
    finally:
        upload.abort()
    if content(store, key) != body:
        raise Wrong("an upload in parts does not come back as it was written")
    if store.get_range(key, PART_SIZE - 2, 4) != body[PART_SIZE - 2 : PART_SIZE + 2]:
        raise Wrong("a range over two parts is not as it was written")
    return f"{len(body):,} bytes in one PUT, and in 2 parts"


def file_system(tested: StoreUnderTest) -> Found:
    url = tested.store.url
    if not url.startswith("file://"):
        return None
    kind = _kind(Path(os.path.realpath(url.removeprefix("file://"))))
    if kind is not None and kind.startswith(_NETWORKED):
        raise Wrong(
            f"{kind} is shared by machines: a reply that is lost and caches of names may show two "
            "machines two logs"
        )
    return f"{kind or 'a file system of unknown kind'}: hard links and renames decide"


def _kind(path: Path) -> str | None:
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kinds: dict[int, str] = {}
    for line in lines:
        _, point, name, *_ = line.split()
        mount = Path(point.encode().decode("unicode_escape"))
        if path.is_relative_to(mount):
            kinds[len(mount.parts)] = name
    return kinds[max(kinds)] if kinds else None


def list_order(tested: StoreUnderTest) -> Found:
    """Byte order, sizes, prefixes that end anywhere, limits, and where to begin."""
    store, folder = tested.store, f"{tested.key('order')}/"
    names = ["b/2", "b/10", "b-x", "b.x", "b/1/z", "bb", "a", "b/é", "b/Z", "c/d/e/f"]
    for size, name in enumerate(names):
        store.put_if_absent(folder + name, b"x" * size)
    ordered = sorted(names, key=str.encode)

    def shown(prefix: str, limit: int = 1000, after: str = "") -> list[str]:
        page = store.list(folder + prefix, limit, folder + after if after else "")
        return [entry.key.removeprefix(folder) for entry in page.entries]

    if shown("") != ordered:
        raise Wrong(f"{shown('')} is not in byte order, or not all")
    sizes = {Entry(folder + name, size) for size, name in enumerate(names)}
    if set(store.list(folder).entries) != sizes:
        raise Wrong("LIST shows other sizes than those of the objects")
    for prefix in ("b", "b/", "b/1", "zzz"):
        if shown(prefix) != [name for name in ordered if name.startswith(prefix)]:
            raise Wrong(f"the prefix {prefix!r} shows {shown(prefix)}")
    for limit in range(1, len(names) + 2):
        page = store.list(folder, limit)
        keys = [entry.key.removeprefix(folder) for entry in page.entries]
        if keys != ordered[: len(keys)] or (not page.more and len(keys) < min(limit, len(ordered))):
            raise Wrong(f"a LIST of {limit} shows {keys}")
        if page.more != (len(keys) < len(ordered)):
            raise Wrong(f"a LIST of {limit} says that there is {'' if page.more else 'no '}more")
    for after in (*ordered, "b/0", "b0", "zzz"):
        if shown("", 3, after) != [name for name in ordered if name > after][:3]:
            raise Wrong(f"a LIST that begins after {after!r} shows {shown('', 3, after)}")
    return "byte order, sizes, prefixes, limits and start-after"


def list_pages(tested: StoreUnderTest) -> Found:
    """A folder like a log's, read page by page, newest first; with `thorough` above 1,000 keys."""
    store, folder = tested.store, f"{tested.key('batches')}/"
    count = 1_100 if tested.trial.thorough else 30
    wanted = [f"{folder}{_TOP - number:020d}" for number in range(count - 1, -1, -1)]
    for _ in run_parallel(store, lambda key: store.put_if_absent(key, b"x"), wanted):
        pass
    store.put_if_absent(f"{folder[:-1]}.other", b"x")
    if [entry.key for entry in all_entries(store, folder)] != wanted:
        raise Wrong(f"page after page shows other keys than the {count} that are there")
    found: list[str] = []
    while len(found) <= count:
        page = store.list(folder, 7, found[-1] if found else "")
        found += [entry.key for entry in page.entries]
        if not page.more:
            break
    if found != wanted:
        raise Wrong(f"pages of 7 show other keys than the {count} that are there")
    return f"{count:,} keys, each once and in order, in pages of 7 and of 1,000"


def list_after_write(tested: StoreUnderTest) -> Found:
    """A LIST shows what was just put, and not what was just deleted, at each endpoint."""
    stores, folder, rounds = tested.retrying, f"{tested.key('fresh')}/", 10
    pairs = [(stores[n % len(stores)], stores[(n + 1) % len(stores)]) for n in range(rounds)]
    keys = [f"{folder}{_TOP - number:020d}" for number in range(rounds)]
    for key, (ours, other) in zip(keys, pairs, strict=True):
        ours.put_if_absent(key, b"x")
        if [entry.key for entry in other.list(folder, 1).entries] != [key]:
            raise Wrong("a LIST does not show an object that was just put")
    for number, (ours, other) in enumerate(pairs, 1):
        ours.delete(keys[number - 1])
        if len(other.list(folder).entries) != rounds - number:
            raise Wrong("a LIST still shows an object that was just deleted")
    return f"{rounds} puts and {rounds} deletes were listed at once"
