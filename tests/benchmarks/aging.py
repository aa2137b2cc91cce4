"""A log of a million commits: the cost of opening, seeking and collecting it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.long_logs import long_logs
from benchmarks.measuring import BUCKET, delayed
from benchmarks.microbatch import reset, seen
from sparkwal import Log
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.testing.servers import log_options

# Each in a separate process, so that the memory of one is not counted for the next.
STEPS = ("open", "seek by position", "seek by time", "plan a collection", "collect")


def step(name: str, url: str, path: str, commits: int) -> int:
    """Run one step, and return the number of its objects."""
    given = log_options(url, hedge=True)
    log = Log(path, **given)
    middle = commits // 2
    if name == "open":
        head = log.head()
        assert head is not None
        return head.position + 1
    if name == "seek by position":
        return len(list(log.records(middle, middle + 9)))
    if name == "seek by time":
        # Each commit was made a millisecond after the one before.
        since = Log(path, startingTimestamp=str(1_700_000_000_000 + middle), **given)
        found = next(since.records())
        assert found.position == middle
        return 1
    store = open_log(from_keywords(StoreOptions, path, given))
    life = Coordinator(store, Policy(retain_seconds=0), gc_grace_ms=0, collects=name == "collect")
    if name == "collect":
        collected = life.collect(dry_run=False)
    else:
        life.run_once()  # moves the floor to the end of the log
        time.sleep(3)  # the store's clock shows seconds
        collected = Coordinator(store, Policy(), gc_grace_ms=0).collect(dry_run=True)
    assert collected is not None
    return collected.objects


def measure(objects: int, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every step on a log from which so many objects can be collected."""
    commits = objects + KEPT_SLOTS - 1  # and a leader record
    found = []
    with long_logs([commits]) as (server, _, _), delayed(server, 0) as proxy:
        for name in STEPS:
            reset(proxy)
            asked = [name, proxy, f"s3://{BUCKET}/{commits}", str(commits)]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.aging", *asked],
                check=True,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            result = json.loads(done.stdout.splitlines()[-1])
            result |= {"step": name, "requests": Counter(each["kind"] for each in seen(proxy))}
            report(str(result))
            found.append(result)
    return found


@click.command("aging")
@click.option("--objects", default=1_000_000, help="How many can be collected.", show_default=True)
def main(objects: int) -> None:
    """A long log: requests, time and memory of opening, seeking and collecting it."""
    measure(objects, click.echo)


if __name__ == "__main__":
    began = time.perf_counter()
    step_name, proxy_url, log_path, count = sys.argv[1:]
    concerned = step(step_name, proxy_url, log_path, int(count))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = round(time.perf_counter() - began, 2)
    print(json.dumps({"objects": concerned, "seconds": seconds, "peak_mb": round(peak_mb)}))
