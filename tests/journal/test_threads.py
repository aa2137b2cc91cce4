"""Many threads and one journal."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import BackPressureError, OptionError
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.storage import Writer
from tests.journal.stand import SMALL, Run, content, open_journal, write_once_there_is_room

SEED = 77


class Counting(DiskFolder):
    """Counts the syncs of its files, and may hold one up."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.counts: Counter[str] = Counter()
        self.before_sync: Callable[[], None] = lambda: None

    def create(self, name: str) -> Writer:
        return self._counting(super().create(name), name)

    def open(self, name: str) -> Writer:
        return self._counting(super().open(name), name)

    def _counting(self, writer: Writer, name: str) -> Writer:
        sync = writer.sync

        def counted() -> None:
            if name.endswith(".wal"):
                self.counts["sync"] += 1
                self.before_sync()
            sync()

        writer.sync = counted  # type: ignore[method-assign]
        return writer


def together(*work: Callable[[], None]) -> None:
    wrong: list[BaseException] = []

    def guarded(do: Callable[[], None]) -> None:
        try:
            do()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize("slots", [4, 64])
def test_eight_threads_append_while_one_reads_and_one_lets_go(tmp_path: Path, slots: int) -> None:
    print(f"seed {SEED}")
    settings = replace(SMALL, segment_bytes=2048, max_bytes=8 * 1024, slots=slots)
    folder = Counting(tmp_path)
    run = open_journal(folder, settings=settings)
    journal, count = run.journal, 100
    written: dict[int, bytes] = {}
    acknowledged: set[int] = set()
    wake, room = threading.Event(), threading.Event()
    journal.on_accepted = lambda: (wake.set(), room.set())
    read: dict[int, bytes] = {}
    appends = 8 * count

    def append(number: int) -> None:
        rng = random.Random(SEED * 100 + number)
        for each in range(count):
            body = b"%d %d " % (number, each) + rng.randbytes(rng.choice([0, 10, 200, 600]))
            sequence = write_once_there_is_room(journal, body)
            assert written.setdefault(sequence, body) is body
            journal.wait(sequence)
            acknowledged.add(sequence)
            assert journal.accepted >= sequence

    def reads() -> None:
        """As what sends it to the log: in order, what is accepted."""
        rng, done = random.Random(SEED), -1
        while done < appends - 1:
            wake.wait(1)
            wake.clear()
            while done < journal.accepted:
                done += 1
                read[done] = bytes(journal.read(done)[0])
                if rng.random() < 0.2 or journal.wants_room:
                    journal.acknowledge(done)
                    room.set()
            journal.acknowledge(done)
            room.set()

    def lets_go() -> None:
        while len(acknowledged) < appends:
            room.wait(0.05)
            room.clear()
            journal.drain()

    together(*[lambda number=number: append(number) for number in range(8)], reads, lets_go)
    assert sorted(written) == list(range(appends))
    assert acknowledged == set(written)
    assert read == written
    journal.close()
    assert "segment_removed" in run.names()
    again = open_journal(DiskFolder(tmp_path), appends - 1)
    assert again.warnings() == [] and again.journal.last == appends - 1
    again.journal.close()


def test_one_sync_is_for_all_that_wait(tmp_path: Path) -> None:
    folder = Counting(tmp_path)
    run = open_journal(folder, settings=replace(SMALL, segment_bytes=2**20, max_bytes=2**23))
    begun = threading.Event()
    written = threading.Semaphore(0)
    folder.counts.clear()

    def holds_the_first() -> None:
        if not begun.is_set():
            begun.set()
            for _ in range(7):
                assert written.acquire(timeout=60)

    folder.before_sync = holds_the_first

    def first() -> None:
        run.journal.wait(run.journal.write(b"x" * 100))

    def other() -> None:
        assert begun.wait(60)
        sequence = run.journal.write(b"x" * 100)
        written.release()
        run.journal.wait(sequence)

    together(first, *[other] * 7)
    # Eight appends: the first, and one for all that came while it was under way.
    assert folder.counts["sync"] == 2
    run.journal.close()


def test_threads_that_find_a_segment_full_while_it_is_synced_take_no_more_slots_than_there_are(
    tmp_path: Path,
) -> None:
    folder = Counting(tmp_path)
    settings = replace(SMALL, segment_bytes=1024, slots=3)
    run = open_journal(folder, settings=settings)
    body = {0: run.append(content(0, 700))}
    assert body == {0: 0}
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go.wait(60)

    run.journal.write(content(1, 10))
    folder.before_sync = hold
    outcomes: list[str] = []

    def appends(number: int) -> None:
        assert begun.wait(60)
        try:
            # Too large for the segment that is being synced, and there is one slot.
            run.journal.write(content(2, 600))
            outcomes.append("taken")
        except BackPressureError:
            outcomes.append("refused")

    def releases() -> None:
        assert begun.wait(60)
        threading.Event().wait(0.5)  # so that all of them are waiting
        folder.before_sync = lambda: None
        go.set()

    together(run.journal.sync, *[lambda n=n: appends(n) for n in range(6)], releases)
    assert sorted(outcomes) == ["refused"] * 5 + ["taken"]
    assert run.entries() == {0: content(0, 700), 1: content(1, 10), 2: content(2, 600)}
    run.journal.close()


def test_an_append_during_close_is_refused_or_kept(tmp_path: Path) -> None:
    # Room for what four threads append until a fifth is given a turn.
    settings = replace(SMALL, segment_bytes=2**16, max_bytes=2**30, slots=2**17)
    for number in range(20):
        run: Run = open_journal(DiskFolder(tmp_path / str(number)), settings=settings)
        accepted: list[int] = []
        some = threading.Event()

        def appends(
            run: Run = run, accepted: list[int] = accepted, some: threading.Event = some
        ) -> None:
            try:
                while True:
                    sequence = run.journal.write(content(0, 50))
                    run.journal.wait(sequence)
                    accepted.append(sequence)
                    some.set()
            except OptionError as error:
                assert "closed" in str(error)

        def closes(run: Run = run, some: threading.Event = some) -> None:
            assert some.wait(60)
            run.journal.close()

        together(*[appends] * 4, closes)
        folder = DiskFolder(tmp_path / str(number))
        run = open_journal(folder, settings=settings)
        cursor = run.contents.cursor
        assert cursor is not None and cursor.ends is not None
        assert cursor.ends[1] == run.contents.segments[-1].size, "nothing came behind the end"
        assert run.warnings() == []
        assert len(run.entries()) == len(accepted) == run.journal.last + 1
        run.journal.close()
