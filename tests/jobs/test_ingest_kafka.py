"""Ingest from a real Kafka broker, killed again and again: each record once, in its order."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import sparkwal
from faults.processes import JOBS, Application
from sparkwal.format.header import CommitHeader, LeaderHeader
from tests.jobs.broker import Broker, Topic, open_topic, start_kafka

# Its jars come first, some 50 MB.
pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

KILLS = 2
PARTITIONS = 3
ROWS_FOR_EACH_LIFE = 90
ROWS_FOR_EACH_MICROBATCH = 15


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with start_kafka() as started:
        yield started


class Pipeline:
    """A topic, the log that it is ingested into, and the machine where that happens.

    Args:
        where: the arguments for the place of the checkpoint; {machine} is a folder.
    """

    def __init__(
        self, topic: Topic, log: tuple[str, dict[str, str]], folder: Path, where: tuple[str, str]
    ) -> None:
        self._topic = topic
        (self._path, self._options) = log
        self._folder = folder
        self._where = where
        self._machine = folder / "machine 0"
        self._lives: list[Application] = []

    def produce(self, rng: random.Random) -> None:
        """Records for one life, over all partitions, with keys that come again."""
        first = len(self._topic.sent)
        self._topic.send(
            [
                (rng.randrange(PARTITIONS), b"key %d" % (n % 7), b"value %d" % n)
                for n in range(first, first + ROWS_FOR_EACH_LIFE)
            ]
        )

    def start(self, trigger: str) -> Application:
        """jobs/ingest.py, on the present machine."""
        command = [
            "env",
            f"XDG_STATE_HOME={self._machine / 'state'}",
            sys.executable,
            str(JOBS / "ingest.py"),
            "--format",
            "kafka",
            "--source",
            self._topic.broker.url,
            "--jars",
            ",".join(self._topic.broker.connector),
            "--option",
            f"subscribe={self._topic.name}",
            "--option",
            "startingOffsets=earliest",
            "--option",
            f"maxOffsetsPerTrigger={ROWS_FOR_EACH_MICROBATCH}",
            "--log",
            self._path,
            *(f"--log-option={k}={v}" for k, v in self._options.items()),
            *(word.format(machine=self._machine) for word in self._where),
            "--trigger",
            trigger,
        ]
        name, temporary = f"life {len(self._lives)}", self._machine / "tmp"
        self._lives.append(Application(name, self._folder, command, temporary))
        return self._lives[-1]

    def lose_machine(self) -> None:
        """The next life begins on a machine that has nothing."""
        shutil.rmtree(self._machine, ignore_errors=True)  # orphans may still write there
        self._machine = self._folder / f"machine {len(self._lives)}"

    def end(self) -> None:
        for life in self._lives:
            life.end()

    def position(self) -> int:
        """The position of the log's head; −1 without a log."""
        head = self._log().head()
        return head.position if head is not None else -1

    def prove(self) -> None:
        """The log holds what the broker acknowledged, once, each partition in its order."""
        columns = ["partition", "offset", "key", "value"]
        rows = self._log().scan(columns=columns).read_all().to_pylist()
        for partition in range(PARTITIONS):
            found = [tuple(row.values()) for row in rows if row["partition"] == partition]
            assert found == [sent for sent in self._topic.sent if sent.partition == partition]
        records = list(self._log().records())
        commits = [record for record in records if isinstance(record, CommitHeader)]
        # One query from its first microbatch to its last.
        assert len({record.query_id for record in commits}) == 1
        assert [record.batch_id for record in commits] == list(range(len(commits)))
        leaders = [record.term for record in records if isinstance(record, LeaderHeader)]
        assert len(leaders) > 1
        print(f"{len(rows)} rows in {len(commits)} microbatches of {len(leaders)} lives")

    def _log(self) -> sparkwal.Log:
        return sparkwal.Log(self._path, **self._options)


@pytest.mark.parametrize(
    ("lost", "where"),
    [
        ("driver", ("--checkpoint", "{machine}/checkpoint")),
        ("machine", ("--name", "orders")),
    ],
    ids=["driver", "machine"],
)
def test_a_kafka_topic_is_in_the_log_once_and_in_order_after_loss_of_the(
    lost: str,
    where: tuple[str, str],
    broker: Broker,
    s3_path: tuple[str, dict[str, str]],
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with ExitStack() as closing:
        topic = closing.enter_context(open_topic(broker, f"orders-{lost}", PARTITIONS))
        pipeline = Pipeline(topic, s3_path, tmp_path, where)
        closing.callback(pipeline.end)
        for kill in range(KILLS):
            pipeline.produce(rng)
            before = pipeline.position()
            life = pipeline.start("0 seconds")
            # The first is the leader's; no more are needed than there are microbatches to come.
            aim = before + rng.randint(1, ROWS_FOR_EACH_LIFE // ROWS_FOR_EACH_MICROBATCH)
            life.wait_for(lambda aim=aim: pipeline.position() >= aim, f"position {aim}")
            time.sleep(rng.uniform(0, 0.5))
            # Every second time its Python workers live on for as long as they notice nothing.
            life.kill(orphans=kill % 2 == 1)
            print(f"killed {pipeline.position() - before} records later")
            if lost == "machine":
                pipeline.lose_machine()
        pipeline.produce(rng)
        last = pipeline.start("available-now")
        assert last.exit_code() == 0, last.errors()
        pipeline.prove()
