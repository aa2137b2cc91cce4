"""Each command of `sparkwal` under the policies of each role: it works, or names what it needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sparkwal
from sparkwal.cli.main import COMMANDS, main
from sparkwal.format import keys
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options, make_bucket, s3_client
from tests.checkpoints.forks import OffsetStream
from tests.consumers import consumer, publish
from tests.docs.tables import PAGES, ROLES, table
from tests.reading.collected import move_floor
from tests.security import iam
from tests.security.roles import CONSUMER, Place, appended, short_blocks, short_memory

BUCKET, PREFIX = "commands", "team/wal"
PATH = f"s3://{BUCKET}/{PREFIX}"
# The position of a commit, which `repair` finds damaged.
COMMIT = 3
# Command line → its arguments after the path. FILE is a new file or folder.
LINES = {
    "at": ("1h",),
    "audit": (),
    "cat": (),
    "checkpoint": ("orders", "--to", "FILE"),
    "collect": (),
    "collect --delete": ("--delete",),
    "consumers": (),
    "consumers --all": ("--all",),
    "cost": (),
    "diff": (PATH,),
    "doctor": (),
    "erased": ("--value", "nobody has this"),
    "head": (),
    "log": (),
    "metrics": (),
    "prove-store": ("--rounds", "1", "--threads", "2"),
    "queries": (),
    "refused": (),
    "refused --again": ("--again",),
    "repair": (str(COMMIT),),
    "report": ("-o", "FILE"),
    "segment": (),
    "show": (),
    "sql": ("SELECT count(*) FROM log, records, consumers",),
    "status": (),
    "status --all": ("--all",),
    "tail": (),
    "verify": (),
    "verify --all": ("--all",),
}
# These change the log.
CHANGING = ("collect --delete", "repair", "segment")
# Needs no store.
WITHOUT_STORE = ("help",)
names = itertools.count()


@dataclass(frozen=True)
class Stand:
    """A log behind a proxy that enforces policies.

    Attributes:
        objects: the objects of the log, by key.
    """

    client: Any
    proxy: S3Proxy
    store: iam.Enforcing
    folder: Path
    objects: dict[str, bytes]

    def run(self, line: str, role: tuple[str, ...]) -> Result:
        """Run a command as a role."""
        number = next(names)
        # A new user: a refusal may be temporary for one whom the store has served.
        user = {**log_options(self.proxy.url), "accessKeyId": f"user-{number}"}
        arguments = [str(self.folder / f"{number}") if a == "FILE" else a for a in LINES[line]]
        flags = [part for pair in user.items() for part in ("--log-option", "=".join(pair))]
        places = {"BUCKET": BUCKET, "PREFIX": PREFIX, "NAME": CONSUMER, "TABLE": "team/lake"}
        self.store.policies = [iam.policy(each, **places) for each in role]
        self.store.denied.clear()
        # Objects below the floor are old enough, and their records too.
        self.store.ahead = timedelta(days=line.startswith("collect") and 8)
        with short_blocks():
            return CliRunner().invoke(main, [line.split()[0], PATH, *arguments, *flags])

    def restore(self) -> None:
        """Bring the objects back that a command changed."""
        for each in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
            if each["Key"] not in self.objects:
                self.client.delete_object(Bucket=BUCKET, Key=each["Key"])
        for key, body in self.objects.items():
            self.client.put_object(Bucket=BUCKET, Key=key, Body=body)

    def damage(self) -> None:
        key = keys.key(PREFIX, keys.slot(COMMIT, 1000))
        body = self.objects[key]
        self.client.put_object(Bucket=BUCKET, Key=key, Body=body[:12] + b"\0\0" + body[14:])


@pytest.fixture(scope="module")
def stand(ministack_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("commands")
    make_bucket(ministack_url, BUCKET)
    furnish(Place(PATH, log_options(ministack_url), folder))
    client = s3_client(ministack_url)
    listed = client.list_objects_v2(Bucket=BUCKET)["Contents"]
    objects = {
        each["Key"]: client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()
        for each in listed
    }
    with S3Proxy(ministack_url) as proxy:
        proxy.upstream = store = iam.Enforcing(proxy.upstream)
        yield Stand(client, proxy, store, folder, objects)


def furnish(place: Place) -> None:
    """A log with a query, producers, a sequencer, a floor, segments and a consumer."""
    log = open_log(settings := from_keywords(SourceOptions, place.path, place.options))
    folder = sparkwal.checkpoint(place.path, "orders", folder=place.folder / "c", **place.options)
    hints = Hints("wal", place.folder / "hints")
    OffsetStream(log, Path(folder), hints, inline=0).run(range(8), each=2)
    one = {**place.options, "maxInFlightRequests": "1"}
    with short_memory():
        appended(place, one, "a", 4)
        appended(place, one, "b", 5)
    appended(place, {**one, "sequencer": "backfill"}, "b", 6)
    move_floor(log, 2, grace_ms=3_600_000)
    live = find_head(log).live
    assert live is not None
    log.store.upload(log.key(keys.data(0, 1000, 7))).part(1, 0, b"left")
    now_ms = Clock().now_ms()
    publish(log, consumer(CONSUMER, 3, live.header.log_id, timestamp_ms=now_ms))
    seen = LogRange(settings, settings.sequencer, log)
    seen.refresh()
    with short_blocks():
        assert make_segments(seen, most=1).blocks


def stated() -> dict[str, dict[str, str]]:
    """The table of the documentation: command line → role → what happens."""
    text = (PAGES / "security.md").read_text()
    head, _, *rows = table(text, "## Commands")["table"].splitlines()
    roles = [cell.split(", ") for cell in cells(head)[1:]]
    return {
        line: {
            role: cell
            for column, cell in zip(roles, cells(row)[1:], strict=True)
            for role in column
        }
        for row in rows
        for line in cells(row)[0].strip("`").split("`, `")
    }


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def happened(result: Result, denied: list[iam.Call]) -> str:
    """The cell of a command that was run. A failure names the permission that was missing."""
    # Anything but SystemExit is a traceback.
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    if not denied:
        assert result.exit_code == 0, result.output
        return "yes"
    if result.exit_code == 0:
        return "in part"
    named = [each for each in denied if each.action in result.output]
    assert named, result.output
    assert result.exit_code in (1, 2)
    return f"`{named[0].action.removeprefix('s3:')}`"


@pytest.mark.s3
@pytest.mark.parametrize("line", LINES)
def test_a_command_works_or_names_the_permission_that_is_missing(line: str, stand: Stand) -> None:
    found: dict[str, str] = {}
    for role in ROLES.values():
        # No policy denies, so a role that may do more needs no run.
        if any(found.get(name) == "yes" for name in role):
            found[role[-1]] = "yes"
            continue
        if line == "repair":
            stand.damage()
        result = stand.run(line, role)
        found[role[-1]] = happened(result, stand.store.denied)
        if line in CHANGING:
            stand.restore()
    assert found == stated()[line]


def test_each_command_and_each_policy_is_in_the_table() -> None:
    assert {line.split()[0] for line in LINES} == COMMANDS.keys() - set(WITHOUT_STORE)
    policies = {file.stem for file in iam.files()} - {"bucket-policy"}
    assert {name for role in ROLES.values() for name in role} == policies
    assert {line: set(roles) for line, roles in stated().items()} == dict.fromkeys(LINES, policies)
