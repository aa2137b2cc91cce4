"""A stream into a log on Azure: its driver is killed and starts again, and requests are counted."""

from __future__ import annotations

import random
import time
from collections import Counter

import sparkwal
from sparkwal.testing.faults import Fault


def test_a_driver_killed_on_azure_loses_nothing(drivers, on_azure, rng: random.Random) -> None:
    proxy = on_azure.proxy
    options = [f"{name}={value}" for name, value in on_azure.options.items()]
    given = [*options, "maxRetryAttempts=8", "retryBaseDelayMs=10"]
    more = {"endpoint": None, "options": given}
    drivers.start()
    driver = drivers.take()
    drivers.start()  # the next one, meanwhile
    driver.go(**on_azure.work(partitions=2, **more))
    driver.wait_batch(2)
    proxy.faults = [Fault("lost_reply", kind="PUT", key_contains="/batches/", times=1)]
    time.sleep(rng.uniform(0, 1.5))
    driver.kill(orphans=True)
    proxy.faults = []
    last = drivers.take()
    last.go(**on_azure.work(batches=on_azure.stream().noted + 2, **more))
    last.finish()
    on_azure.prove(least=4)
    # A third run begins with a leader record; each microbatch then costs one PUT and nothing else.
    proxy.reset()
    before = on_azure.stream().noted
    last.go(**on_azure.work(batches=before + 6, **more))
    last.finish()
    requests = [x for x in proxy.requests if "/proof/" not in x.key]
    kinds = [x.kind for x in requests]
    start = kinds.index("LIST")
    puts = [number for number, kind in enumerate(kinds) if kind == "PUT" and number > start]
    # The first two are the leader record and the first commit.
    assert Counter(kinds[start : puts[1]])["LIST"] == 1
    assert {*kinds[puts[1] :]} == {"PUT"}, kinds
    assert all("/batches/" in requests[number].key for number in puts)
    assert len({requests[number].key for number in puts}) == len(puts) >= 6
    print(f"start: {Counter(kinds[start : puts[0]])}, then {len(puts)} PUT")
    found = on_azure.prove(least=8)
    assert found.leaders >= 2
    assert sparkwal.verify(on_azure.log, **on_azure.options).ok
