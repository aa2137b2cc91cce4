"""A stateful streaming query over files, without Spark: it keeps and loads its state as Spark does.

It writes the first file of each key: a file's key is the rest of its number. The state is the keys
that it has seen.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkwal.checkpoints import folder
from sparkwal.protocol.holds import LOG_ID
from tests.checkpoints.state_files import (
    PROVIDERS,
    Hdfs,
    Keys,
    Rocks,
    StateLost,
    Version,
    content,
    put,
    remove,
    sealed,
)
from tests.checkpoints.stream import FileStream

# Spark keeps this many versions of its state, and as many plans and commits.
RETAIN = 3
# The `log_id` of the log that the query reads.
SOURCE_LOG = "the source"


class Store(NamedTuple):
    """A store of one partition. An operator with one store gives it no name."""

    operator: int
    partition: int
    name: str

    @property
    def folder(self) -> str:
        name = f"/{self.name}" if self.name else ""
        return f"state/{self.operator}/{self.partition}{name}"


DEDUPLICATE = ("",)
JOIN = ("left-keyToNumValues", "right-keyToNumValues")


@dataclass
class StatefulStream(FileStream):
    """A query with state.

    Attributes:
        keys: the number of keys.
        provider: the name of its state store provider.
        operators: the names of the stores of each operator.
        partitions: the partitions of each operator.
        random: decides which attempts of a task fail, and when Spark maintains a store.
        repeats: how often an attempt of a task fails after it wrote its file.
        written: the bytes of the files that its tasks wrote.
    """

    keys: int = 40
    provider: str = "hdfs"
    operators: tuple[tuple[str, ...], ...] = (DEDUPLICATE,)
    partitions: int = 2
    random: random.Random = field(default_factory=lambda: random.Random(0))
    repeats: float = 0.0
    written: int = 0

    @property
    def files(self) -> Hdfs | Rocks:
        return PROVIDERS[self.provider]

    @property
    def stores(self) -> list[Store]:
        return [
            Store(operator, partition, name)
            for operator, names in enumerate(self.operators)
            for partition in range(self.partitions)
            for name in names
        ]

    def run(self, files: range, each: int = 1) -> None:
        """Every microbatch of `each` files that the checkpoint does not know."""
        for _ in self.moves(lambda: files, each):
            pass

    def moves(
        self, files: Callable[[], range], each: int = 1, *, empty: Callable[[], bool] = bool
    ) -> Iterator[str]:
        """The moves of a run, one after another. A run that dies makes no more of them.

        Args:
            files: the files that are there.
            each: the most files of a microbatch.
            empty: whether to plan a microbatch without files now, as Spark does for a watermark.
        """
        self._describe()
        yield "described"
        while True:
            last, done = folder.latest(self.place, "offsets"), folder.latest(self.place, "commits")
            number = last
            if last in (-1, done):
                number = last + 1
                entry = self._next(number, files, each, empty)
                if entry is None:
                    return
                yield "listed"
                self.write_offsets(number, entry)
            yield "planned"
            tasks = self.plan_write()
            new, ids = [], {}
            for store in self.stores:
                rows, ids[store] = self._task(store, number)
                new += rows
                yield "task"
            self.sink(number, sorted(new), tasks)
            yield "sent"
            self._note(number, ids)
            yield "noted"
            self._purge(number)

    def _next(
        self, number: int, files: Callable[[], range], each: int, empty: Callable[[], bool]
    ) -> int | None:
        """The entry of the source up to which the next microbatch reads, or None if none is due."""
        before = self._offset(number - 1) if number else -1
        # A run that died may have listed files that no microbatch has planned.
        listed = max(self._lists(), default=-1)
        if listed == before and number and empty():
            return before
        found = self.list_files(files(), each)
        return listed if found is None and listed > before else found

    def write_offsets(self, number: int, entry: int) -> None:
        """Plan a microbatch up to this entry. A log has the same files, one position an entry."""
        super().write_offsets(number, entry)
        plan = (self.place / f"offsets/{number}").read_text()
        other = json.dumps({f"{LOG_ID}default": SOURCE_LOG, "default": entry + 1})
        self.write(f"offsets/{number}", f"{plan}\n{other}")

    def _task(self, store: Store, number: int) -> tuple[list[int], Version]:
        """What a task writes: it loads version N, changes it and writes version N + 1."""
        place = self.place / store.folder
        before = self.version_of(store, number)
        keys = self.load(store, number)
        first: dict[int, int] = {}
        for file in self.input(number):
            if file % self.keys not in keys and self._is_of(store, file):
                first.setdefault(file % self.keys, file)
        while True:
            unique_id = str(uuid.UUID(int=self.random.getrandbits(128))) if self.has_ids else ""
            new = Version(number + 1, unique_id)
            earlier = {*place.rglob("*")}
            self.files.commit(place, before, new, frozenset(first))
            self.written += sum(file.stat().st_size for file in {*place.rglob("*")} - earlier)
            if self.random.random() >= self.repeats:
                break
        is_first = (store.operator, store.name) == (0, self.operators[0][0])
        return list(first.values()) if is_first else [], new

    def size(self, store: Store) -> int:
        """The bytes of a store in one file."""
        return len(sealed(self.load(store, folder.latest(self.place, "commits") + 1)))

    @property
    def has_ids(self) -> bool:
        return self.files.has_ids

    def _is_of(self, store: Store, file: int) -> bool:
        return file % self.keys % self.partitions == store.partition

    def load(self, store: Store, number: int) -> Keys:
        """The state of a store before a microbatch, from its files.

        Raises:
            StateLost: Spark could not load it.
        """
        self._check_described(store, number)
        return self.files.load(self.place / store.folder, self.version_of(store, number))

    def expected(self, store: Store, number: int) -> Keys:
        """The state of a store before a microbatch, from the input of all before it."""
        end = self._offset(number - 1) if number else -1
        before = (file for file, entry in self._seen().items() if entry <= end)
        return frozenset(file % self.keys for file in before if self._is_of(store, file))

    def version_of(self, store: Store, number: int) -> Version:
        """The version of a store before a microbatch, as `commits/N−1` names it."""
        if number == 0 or not self.has_ids:
            return Version(number)
        text = content(self.place / f"commits/{number - 1}").decode()
        ids = json.loads(text.splitlines()[1])["stateUniqueIds"]
        index = self.operators[store.operator].index(store.name)
        return Version(number, ids[str(store.operator)][store.partition][index])

    def _note(self, number: int, ids: dict[Store, Version]) -> None:
        if not self.has_ids:
            self.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
            return
        named = {
            str(operator): [
                [ids[Store(operator, partition, name)].unique_id for name in names]
                for partition in range(self.partitions)
            ]
            for operator, names in enumerate(self.operators)
        }
        text = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": named})
        self.write(f"commits/{number}", f"v2\n{text}")

    def _describe(self) -> None:
        """As Spark describes the operators and their stores when a run begins."""
        for operator, names in enumerate(self.operators):
            top = f"state/{operator}"
            fields = {
                "operatorInfo": {"operatorId": operator, "operatorName": "dedupe"},
                "stateStoreInfo": [
                    {"storeName": name or "default", "numPartitions": self.partitions}
                    for name in names
                ],
            }
            if not (self.place / top / "_metadata/metadata").exists():
                put(self.place / top / "_metadata/metadata", f"v1\n{json.dumps(fields)}".encode())
            for name in names:
                schema = self.place / Store(operator, 0, name).folder / "_metadata/schema"
                if not schema.exists():
                    put(schema, b"v2 a schema")

    def _check_described(self, store: Store, number: int) -> None:
        if number == 0:
            return
        content(self.place / f"state/{store.operator}/_metadata/metadata")
        schema = Store(store.operator, 0, store.name).folder
        if content(self.place / schema / "_metadata/schema") != b"v2 a schema":
            raise StateLost(f"{schema}/_metadata/schema is torn")

    def maintain(self, *, snapshots: bool = True, cleans: bool = True) -> None:
        """As Spark maintains its stores in the background, any time."""
        done = folder.latest(self.place, "commits")
        for store in self.stores:
            place = self.place / store.folder
            if snapshots:
                # It may also write down a version that no sink has committed yet.
                self._snapshot(store, done + 1)
            if isinstance(self.files, Rocks) and self.random.random() < 0.2:
                self.files.begin_table(place, Version(done + 2))
            if cleans:
                self.files.clean(place, RETAIN)

    def _snapshot(self, store: Store, number: int) -> None:
        if number < 1:
            return
        version = self.version_of(store, number)
        place = self.place / store.folder
        if not self.has_ids and self.random.random() < 0.5:
            later = [Version(number + 1), version]
            kinds = ("delta", "changelog")
            written = {file.stem for kind in kinds for file in place.glob(f"[0-9]*.{kind}")}
            version = next((each for each in later if each.stem in written), version)
        self.files.snapshot(place, version, self.files.load(place, version))

    def _purge(self, number: int) -> None:
        for kind in ("offsets", "commits"):
            for file in (self.place / kind).glob("[0-9]*"):
                if int(file.name) < number - RETAIN:
                    remove(file)
