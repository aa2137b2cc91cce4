"""What one object does: put once, read back whole and in ranges, age, be deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sparkwal.store.base import PART_SIZE, NotFound, Store
from sparkwal.store.parallel import run_parallel
from sparkwal.testing.ground import Found, Ground, Wrong

# Between the clocks' ticks of a store and of this machine.
_TICK_MS = 50
_NETWORKED = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gpfs", "glusterfs", "afs")


def first_put_wins(ground: Ground) -> Found:
    """One put after another at one key; and an empty object."""
    store = ground.store
    for first in (ground.body(100), b""):
        key = ground.key()
        # A False whose content is ours is our own put after a lost reply.
        if not store.put_if_absent(key, first) and store.get(key) != first:
            raise Wrong("it refused to create an object at a free key")
        for second in (ground.body(100), first, ground.body(100_000)):
            if store.put_if_absent(key, second):
                raise Wrong("it accepted a second put at a taken key")
        if store.get(key) != first:
            raise Wrong("a refused put changed the object all the same")
    return "the first put created the object, 3 others were refused and changed nothing"


def read_after_write(ground: Ground) -> Found:
    """What was written, overwritten and deleted is read so at once, at each endpoint."""
    count = 20

    def tell(number: int) -> None:
        ours = ground.retrying[number % len(ground.retrying)]
        other = ground.retrying[(number + 1) % len(ground.retrying)]
        key, first, second = keys[number], b"first %d" % number, b"second %d" % number
        if _get(other, key) is not None:
            raise Wrong("an object is there before it was written")
        ours.put_if_absent(key, first)
        if _get(other, key) != first:
            raise Wrong("an object that was just created is not there")
        ours.put(key, second)
        if _get(other, key) != second:
            raise Wrong("a GET after an overwrite gives what was there before")
        ours.delete(key)
        if _get(other, key) is not None:
            raise Wrong("an object that was just deleted is still there")

    keys = [ground.key("read") for _ in range(count)]
    for _ in run_parallel(ground.store, tell, range(count)):
        pass
    return f"{count} keys: created, overwritten and deleted objects were read so at once"


def deletes(ground: Ground) -> Found:
    """One DELETE and one DeleteObjects, of absent keys too; a freed key can be taken again."""
    store = ground.store
    kept, freed = ground.key("kept"), ground.key("freed")
    odd = [ground.key(name) for name in ("a&b", "a'b", "a b", "a+b", "a%25b")]
    count = 1000 if ground.trial.thorough else 20
    absent = [ground.key("absent") for _ in range(count - len(odd))]
    for key in [kept, freed, *odd]:
        store.put(key, b"x")
    for _ in range(2):
        store.delete_many([*odd, *absent])
        store.delete(freed)
    if any(_get(store, key) is not None for key in [freed, *odd]):
        raise Wrong("an object that was deleted is still there")
    if _get(store, kept) is None:
        raise Wrong("a delete of many removed an object that it did not name")
    if not store.put_if_absent(freed, b"again") and _get(store, freed) != b"again":
        raise Wrong("a key that was freed cannot be taken again")
    return f"one, and {count} in one request; absent ones are no error; a freed key can be taken"


def ranges(ground: Ground) -> Found:
    """Any part of an object, up to its end and beyond."""
    store, key, body = ground.store, ground.key(), ground.body(1000)
    store.put_if_absent(key, body)
    for offset, length in ((0, 1000), (0, 1), (10, 20), (990, 100), (999, 1), (1000, 5), (5000, 5)):
        if store.get_range(key, offset, length) != body[offset : offset + length]:
            raise Wrong(f"{length} bytes from {offset} of 1000 are not those of the object")
    try:
        store.get_range(ground.key("absent"), 0, 1)
    except NotFound:
        return "parts, the end, and beyond it"
    raise Wrong("a range of an absent object is there")


def age(ground: Ground) -> Found:
    """An object is never older than it can be."""
    oldest = 0
    for body in (b"", b"x" * 1000):
        key = ground.key("age")
        before = time.monotonic()
        ground.store.put_if_absent(key, body)
        found = ground.store.age_ms(key)
        passed = (time.monotonic() - before) * 1000
        if not 0 <= found <= passed + _TICK_MS:
            raise Wrong(f"an object is {found} ms old {passed:.0f} ms after it was put")
        oldest = max(oldest, found)
    try:
        ground.store.age_ms(ground.key("absent"))
    except NotFound:
        return f"Last-Modified and Date agree (a new object is {oldest} ms old)"
    raise Wrong("an absent object has an age")


def key_characters(ground: Ground) -> Found:
    """Names that URLs and XML write in other ways."""
    place = ground.place("names")
    names = ["a b", "a+b", "a%20b", "a&b<c>", "a'\"b", "é", "日本", "😀", "a=b", "a,b;c", "a?b#c",
             "a!(b)*~", "a@b:c", "[a]{b}", "x" * 200]  # fmt: skip
    for number, name in enumerate(names):
        ground.store.put_if_absent(place + name, b"%d" % number)
    for number, name in enumerate(names):
        if _get(ground.store, place + name) != b"%d" % number:
            raise Wrong(f"the object named {name[:20]!r} is not there, or another one is")
    listed = [entry.key.removeprefix(place) for entry in ground.store.list(place).entries]
    wanted = sorted(names, key=str.encode)
    if listed != wanted:
        odd = next((name for name in wanted if name not in listed), None)
        raise Wrong(f"LIST names {odd[:20]!r} otherwise" if odd else "LIST is not in byte order")
    return f"{len(names)} odd names are kept and listed as they are"


def big_object(ground: Ground) -> Found:
    """One PUT of more than 8 MiB, and an upload in parts that came in another order."""
    key, body = ground.key("big"), ground.body(PART_SIZE + 12_345)
    ground.store.put_if_absent(key, body)
    if ground.store.get(key) != body:
        raise Wrong("one PUT of 8 MiB does not come back as it was written")
    key = ground.key("parts")
    upload = ground.store.upload(key)
    try:
        upload.part(2, PART_SIZE, body[PART_SIZE:])
        upload.part(1, 0, body[:PART_SIZE])
        if ground.store.list(key).entries:
            raise Wrong("an upload shows before it is complete")
        created = upload.complete()
    finally:
        upload.abort()
    # A False whose content is ours is our own Complete after a lost reply.
    if ground.store.get(key) != body or not (created or ground.store.get(key) == body):
        raise Wrong("an upload in parts does not come back as it was written")
    if ground.store.get_range(key, PART_SIZE - 2, 4) != body[PART_SIZE - 2 : PART_SIZE + 2]:
        raise Wrong("a range over two parts is not as it was written")
    return f"{len(body):,} bytes in one PUT, and in 2 parts"


def file_system(ground: Ground) -> Found:
    """Of a folder: what kind of file system it lies on."""
    url = ground.store.url
    if not url.startswith("file://"):
        return None
    kind = _kind(Path(os.path.realpath(url.removeprefix("file://"))))
    if kind is None:
        return "hard links and renames decide; its kind is not known"
    if kind.startswith(_NETWORKED):
        raise Wrong(
            f"{kind} is shared by machines: a reply that is lost and caches of names may show two "
            "machines two logs"
        )
    return f"{kind}: hard links and renames decide"


def _kind(path: Path) -> str | None:
    """The type of the file system that holds `path`, as Linux tells it."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        _, point, name, *_ = line.split()
        mount = Path(point.encode().decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), name
    return kind


def _get(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except NotFound:
        return None
