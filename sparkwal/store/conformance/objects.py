"""Checks of objects: put-if-absent, reads, ages, deletes, and lists in byte order."""

import hashlib
import os
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import PART_SIZE, Entry, all_entries
from sparkwal.store.conformance.suite import Observation, StoreUnderTest, content, must
from sparkwal.store.parallel import run_parallel

# The tolerance for the clocks of the store and of this machine.
_TICK_MS = 50
# The racers for one ETag.
_RACERS = 4
_NETWORKED = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gpfs", "glusterfs", "afs")


def keep_first(tested: StoreUnderTest, first: bytes, *others: bytes) -> None:
    """Put several bodies at one key, and check that the first one stays."""
    store, key = tested.store, tested.key()
    try:
        created = store.put_if_absent(key, first)
    except (StoreUnavailableError, OptionError) as error:
        # Without a stored object a removal is not needed, and would fail too.
        if not getattr(error, "maybe_applied", False):
            tested.keys.remove(key)
        raise
    # If the content is equal, an earlier attempt of this put created it and its reply was lost.
    must(created or content(store, key) == first, "it refused to create an object at a free key")
    taken = any(store.put_if_absent(key, other) for other in others)
    must(not taken, "it accepted a second put at a taken key")
    must(content(store, key) == first, "a refused put changed the object")


def first_put_wins(tested: StoreUnderTest) -> Observation:
    for first in (tested.body(100), b""):
        keep_first(tested, first, tested.body(100), first, tested.body(100_000))
    return "the first put created the object, 3 others were refused and changed nothing"


def replace_tagged(tested: StoreUnderTest) -> Observation:
    """A PUT with If-Match replaces only the object with that ETag; of several racers one."""
    store = tested.store
    key = tested.key("tagged")
    must(store.put_if_absent(key, b"first"), "it refused to create an object at a free key")
    first = store.get_tagged(key)
    for wrong in (f'"{"0" * 32}"', f'"{hashlib.md5(b"other").hexdigest()}"'):
        replaced = store.replace(key, b"second", wrong)
        must(
            not replaced and content(store, key) == b"first",
            "a PUT with If-Match replaced an object with another ETag",
        )
    bodies = [f"racer {number}".encode() for number in range(_RACERS)]
    winners = [*run_parallel(store, lambda body: store.replace(key, body, first.etag), bodies)]
    stored = content(store, key)
    must(winners.count(True) <= 1, "several PUTs with If-Match and one ETag replaced an object")
    must(stored in bodies, "a PUT with If-Match and the right ETag did not replace the object")
    must(
        True not in winners or stored == bodies[winners.index(True)],
        "a refused PUT with If-Match changed the object",
    )
    newest = store.get_tagged(key)
    store.delete(key)
    created = store.replace(key, b"third", newest.etag)
    must(
        not created and content(store, key) is None,
        "a PUT with If-Match created an object that had been deleted",
    )
    return "another ETag and a missing object were refused, and one of several racers won"


def after_write(tested: StoreUnderTest) -> Observation:
    """Every change of an object is visible at once, at the next endpoint."""

    def check(number: int) -> None:
        stores, key = tested.retrying, keys[number]
        writer, reader = stores[number % len(stores)], stores[(number + 1) % len(stores)]
        for change, body in (
            (lambda: None, None),
            (lambda: writer.put_if_absent(key, b"1"), b"1"),
            (lambda: writer.put(key, b"22"), b"22"),
            (lambda: writer.delete(key), None),
        ):
            change()
            sizes = [entry.size for entry in reader.list(key).entries]
            right = content(reader, key) == body and sizes == ([] if body is None else [len(body)])
            must(right, f"a GET or a LIST does not show {body!r} (None: no object) at once")

    keys = [tested.key("fresh") for _ in range(20)]
    list(run_parallel(tested.store, check, range(len(keys))))
    return f"{len(keys)} keys: each create, overwrite and delete was visible at once"


def deletes(tested: StoreUnderTest) -> Observation:
    """One DELETE and one DeleteObjects, of absent keys too; a freed key can be taken again."""
    store = tested.store
    untouched, freed = tested.key("untouched"), tested.key("freed")
    odd = [tested.key(name) for name in ("a&b", "a'b", "a b", "a+b", "a%25b")]
    count = 1000 if tested.trial.thorough else 20
    absent = [tested.key("absent") for _ in range(count - len(odd))]
    for key in [untouched, freed, *odd]:
        store.put(key, b"x")
    for _ in range(2):
        store.delete_many([*odd, *absent])
        store.delete(freed)
    left = any(content(store, key) is not None for key in [freed, *odd])
    must(not left, "an object that was deleted is still there")
    must(
        content(store, untouched) == b"x", "a delete of many removed an object that it did not name"
    )
    taken = store.put_if_absent(freed, b"again") or content(store, freed) == b"again"
    must(taken, "a key that was freed cannot be taken again")
    return f"one, and {count} in one request; absent ones are no error; a freed key can be taken"


def ranges(tested: StoreUnderTest) -> Observation:
    """Range reads return the requested bytes, also at the object's end and beyond it."""
    store = tested.store
    key = tested.key()
    body = tested.body(1000)
    store.put_if_absent(key, body)
    for offset, length in ((0, 1000), (0, 1), (10, 20), (990, 100), (999, 1), (1000, 5), (5000, 5)):
        same = store.get_range(key, offset, length) == body[offset : offset + length]
        must(same, f"{length} bytes from {offset} of 1000 are not those of the object")
    return "parts, the end, and beyond it"


def age(tested: StoreUnderTest) -> Observation:
    """The age of an object is at most the time since its put."""
    for body in (b"", b"x" * 1000):
        key, before = tested.key("age"), time.monotonic()
        tested.store.put_if_absent(key, body)
        age_ms = tested.store.age_ms(key)
        passed = (time.monotonic() - before) * 1000
        must(0 <= age_ms <= passed + _TICK_MS, f"{age_ms} ms old {passed:.0f} ms after its put")
    return f"Last-Modified and Date agree (a new object is {age_ms} ms old)"


def key_characters(tested: StoreUnderTest) -> Observation:
    """Names that URLs and XML write in other ways."""
    store, folder = tested.store, f"{tested.key('names')}/"
    names = [
        "a b",
        "a+b",
        "a%20b",
        "a&b<c>",
        "a'\"b",
        "é",
        "日本",
        "😀",
        "a=b",
        "a,b;c",
        "a?b#c",
        "a!(b)*~",
        "a@b:c",
        "[a]{b}",
        "x" * 200,
    ]
    for name in names:
        store.put_if_absent(folder + name, name.encode())
    listed = [entry.key.removeprefix(folder) for entry in store.list(folder).entries]
    for name in names:
        right = content(store, folder + name) == name.encode()
        must(right, f"the object named {name[:20]!r} is missing, or is another one")
    must(listed == sorted(names, key=str.encode), "LIST changes names or their byte order")
    return f"{len(names)} odd names are stored and listed unchanged"


def big_object(tested: StoreUnderTest) -> Observation:
    """One PUT of more than 8 MiB, and an upload whose second part is sent first."""
    store = tested.store
    key = tested.key("big")
    body = tested.body(PART_SIZE + 12_345)
    store.put_if_absent(key, body)
    must(store.get(key) == body, "one PUT of 8 MiB does not come back as it was written")
    key = tested.key("parts")
    upload = tested.upload(store, key)
    upload.part(2, PART_SIZE, body[PART_SIZE:])
    upload.part(1, 0, body[:PART_SIZE])
    must(not store.list(key).entries, "an upload shows before it is complete")
    upload.complete()
    must(content(store, key) == body, "an upload in parts does not come back as it was written")
    across = store.get_range(key, PART_SIZE - 2, 4)
    must(across == body[PART_SIZE - 2 : PART_SIZE + 2], "a range over two parts is another one")
    return f"{len(body):,} bytes in one PUT, and in 2 parts"


def file_system(tested: StoreUnderTest) -> Observation:
    if tested.root is None:
        return None
    kind = ""
    with suppress(OSError):
        device = os.stat(tested.root).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        mount = next((line for line in mounts if line.split()[2] == number), "")
        kind = mount.partition(" - ")[2].partition(" ")[0]
    shared = kind.startswith(_NETWORKED)
    must(not shared, f"{kind} is shared by machines, and may show two of them two logs")
    return f"{kind or 'a file system of unknown kind'}: hard links and renames decide"


def list_order(tested: StoreUnderTest) -> Observation:
    """LIST obeys byte order, prefixes, limits and `start-after`, and shows the sizes."""
    store, folder = tested.store, f"{tested.key('order')}/"
    names = ["b/2", "b/10", "b-x", "b.x", "b/1/z", "bb", "a", "b/é", "b/Z", "c/d/e/f"]
    sizes = {folder + name: size for size, name in enumerate(names)}
    for key, size in sizes.items():
        store.put_if_absent(key, b"x" * size)
    ordered = [Entry(key, sizes[key]) for key in sorted(sizes, key=str.encode)]

    def check(prefix: str, limit: int = 1000, after: str = "") -> None:
        prefix, after = folder + prefix, folder + after if after else ""
        shown, more = store.list(prefix, limit, after)
        expected = [
            entry for entry in ordered if entry.key.startswith(prefix) and entry.key > after
        ]
        # A page may be shorter than the limit, but not empty, and its `more` must be right.
        right = shown == expected[: min(len(shown), limit)] and bool(shown) == bool(expected)
        right = right and more == (len(shown) < len(expected))
        request = f"the LIST of {limit} under {prefix!r} after {after!r}"
        must(right, f"{request} shows {shown}, more: {more}; not {expected[:limit]}")

    for prefix in ("", "b", "b/", "b/1", "zzz"):
        check(prefix)
    for limit in range(1, len(names) + 2):
        check("", limit)
    for after in (*names, "b/0", "b0", "zzz"):
        check("", 3, after)
    return "byte order, sizes, prefixes, limits and start-after"


def list_pages(tested: StoreUnderTest) -> Observation:
    """LIST pages through the folder of a log, newest first. If thorough, it has 1,100 keys."""
    store, folder = tested.store, f"{tested.key('batches')}/"
    count = 1_100 if tested.trial.thorough else 30
    expected = [f"{folder}{2**64 - number:020d}" for number in range(count, 0, -1)]
    list(run_parallel(store, lambda key: store.put_if_absent(key, b"x"), expected))
    for limit in (1000, 7):
        keys = [entry.key for entry in islice(all_entries(store, folder, limit=limit), count + 1)]
        must(keys == expected, f"pages of {limit} do not show the {count} keys that exist")
    return f"{count:,} keys, each once and in order, in pages of 7 and of 1,000"
