"""One configuration that is searched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkwal.format import keys
from sparkwal.lifecycle.collecting import collection, erasing
from sparkwal.protocol import archive, chain, commit, recovery, segments
from tests.simulation.explore import Budget, Report, explore
from tests.simulation.machine import Process
from tests.simulation.world import State


@dataclass(frozen=True)
class Configuration:
    """The configuration of a search: the processes, the faults, and the world at the beginning.

    Attributes: as of `explore.explore`; `begin` and `ending` create them.
        entries: the maximum number of entries in a record when a leader begins, and the number
            that it keeps.
        forward: the number of microbatches without rows after which a record carries the
            checkpoint forward.
        kept: the number of slot records that a collection leaves, and that the search for the
            head lists.
        block: the number of positions that a segment covers.
        front: the bytes of a segment that are read first.
        records: the number of the newest numbers of the chain that are never freed. With another
            number than the usual one, each run may delete older records.
    """

    processes: dict[str, Process]
    budget: Budget = Budget(0, 0)
    begin: Callable[[], State] = State
    deletes: bool = False
    still: tuple[str, ...] = ()
    every_start: bool = False
    gets_in: str = ""
    ends: Mapping[str, str] = field(default_factory=dict)
    follows: Mapping[str, str] = field(default_factory=dict)
    ending: Callable[[], Callable[[State], None]] | None = None
    entries: tuple[int, int] = (archive.MOST, archive.KEPT)
    forward: int = commit.FORWARD
    kept: int = collection.KEPT_SLOTS
    block: int = keys.BLOCK
    front: int = segments.FRONT
    records: int = chain.KEPT_RECORDS

    def explore(self, most_states: int = 10_000_000, rng: random.Random | None = None) -> Report:
        """See `explore.explore`."""
        with (
            archiving(self.entries),
            keeping(self.kept),
            forwarding(self.forward),
            with_blocks(self.block, self.front),
            bounding(self.records),
        ):
            return explore(
                self.processes,
                self.budget,
                begin=self.begin(),
                deletes=self.deletes,
                still=self.still,
                every_start=self.every_start,
                gets_in=self.gets_in,
                ends=self.ends,
                follows=self.follows,
                ending=self.ending() if self.ending else None,
                most_states=most_states,
                rng=rng,
            )


@contextmanager
def archiving(entries: tuple[int, int]) -> Iterator[None]:
    before = archive.MOST, archive.KEPT
    archive.MOST, archive.KEPT = entries
    try:
        yield
    finally:
        archive.MOST, archive.KEPT = before


@contextmanager
def forwarding(microbatches: int) -> Iterator[None]:
    before = commit.FORWARD
    commit.FORWARD = microbatches
    try:
        yield
    finally:
        commit.FORWARD = before


@contextmanager
def bounding(records: int) -> Iterator[None]:
    before = chain.KEPT_RECORDS, collection.EVERY
    every = collection.EVERY if records == chain.KEPT_RECORDS else 1
    chain.KEPT_RECORDS = collection.KEPT_RECORDS = records
    collection.EVERY = every
    try:
        yield
    finally:
        chain.KEPT_RECORDS, collection.EVERY = before
        collection.KEPT_RECORDS = chain.KEPT_RECORDS


@contextmanager
def keeping(slots: int) -> Iterator[None]:
    before = collection.KEPT_SLOTS, recovery.LIST_LIMIT, erasing.replace_fault
    collection.KEPT_SLOTS, recovery.LIST_LIMIT = slots, min(slots, recovery.LIST_LIMIT)
    # The simulated store enforces If-Match.
    erasing.replace_fault = lambda store, prefix: ""
    try:
        yield
    finally:
        collection.KEPT_SLOTS, recovery.LIST_LIMIT, erasing.replace_fault = before


@contextmanager
def with_blocks(size: int, front: int = segments.FRONT) -> Iterator[None]:
    before = keys.BLOCK, segments.FRONT
    keys.BLOCK, segments.FRONT = size, front
    try:
        yield
    finally:
        keys.BLOCK, segments.FRONT = before
