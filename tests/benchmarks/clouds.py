"""Many small objects of Azure: read by the store, and by obstore's own parallel GETs."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.measuring import delayed, numbers
from benchmarks.report import table
from sparkwal.store.azure import AzureStore
from sparkwal.store.config import RetryPolicy
from sparkwal.store.parallel import Range, get_many, run_parallel
from sparkwal.store.retry import RetryingStore

# By its name from the root: its own imports begin there, and those of this folder in tests/.
azurite: Any = import_module("tests.store.azurite")
console = Console(stderr=True, highlight=False)
# The most bytes that a reader of records asks for at once.
_MOST = 64 * 2**10
_INSTALL = "obstore is missing: pip install '.[peers]' into the benchmark's environment"


def _theirs(url: str, container: str, at_once: int) -> Any:
    """A store of obstore for the same container."""
    try:
        stores = import_module("obstore.store")
    except ImportError:
        raise click.ClickException(_INSTALL) from None
    return stores.AzureStore(
        container_name=container,
        config={
            "account_name": azurite.ACCOUNT,
            "account_key": azurite.KEY,
            "endpoint": f"{url}/{azurite.ACCOUNT}",
        },
        client_options={"allow_http": True, "pool_max_idle_per_host": str(at_once)},
    )


def _runs(url: str, container: str, names: list[str]) -> dict[str, Callable[[], int]]:
    """Each way to read all objects, which returns the sum of their sizes."""
    store = RetryingStore(AzureStore(container, azurite.config(url)), RetryPolicy())
    theirs = _theirs(url, container, store.concurrency)
    obstore = import_module("obstore")

    def ours() -> int:
        wanted = ((name, Range(name, 0, _MOST, is_front=True)) for name in names)
        return sum(len(body or b"") for _, body in get_many(store, wanted))

    def by_threads() -> int:
        def read(name: str) -> int:
            return len(obstore.get(theirs, name).bytes())

        with ThreadPoolExecutor(store.concurrency) as pool:
            return sum(pool.map(read, names))

    async def gathered() -> int:
        places = asyncio.Semaphore(store.concurrency)

        async def read(name: str) -> int:
            async with places:
                return len(await (await obstore.get_async(theirs, name)).bytes_async())

        return sum(await asyncio.gather(*map(read, names)))

    return {
        "get_many": ours,
        "obstore, asyncio": lambda: asyncio.run(gathered()),
        "obstore, threads": by_threads,
    }


@contextmanager
def _behind(url: str, latency_ms: int) -> Iterator[str]:
    if not latency_ms:
        yield url
        return
    with delayed(url, latency_ms) as proxy:
        yield proxy


def _measure(
    runs: dict[str, Callable[[], int]], turns: int, expected: int
) -> dict[str, tuple[float, float]]:
    """For each run, in turns: median seconds, and least CPU seconds of this process."""
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    for turn in range(turns + 1):
        for name, run in runs.items():
            began, used = time.perf_counter(), time.process_time()
            found = run()
            taken, used = time.perf_counter() - began, time.process_time() - used
            if found != expected:
                raise RuntimeError(f"{name}: {found} bytes were read, not {expected}")
            if turn:  # the first opens connections
                wall[name].append(taken)
                cpu[name].append(used)
    return {name: (statistics.median(wall[name]), min(cpu[name])) for name in runs}


@click.command("clouds")
@click.option("--objects", default=2000, show_default=True)
@click.option("--size", default=4096, show_default=True, help="Bytes of an object.")
@click.option("--latency", "latencies", default="0,20", show_default=True, callback=numbers)
@click.option("--turns", default=5, show_default=True, help="One more warms up.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/clouds.json"),
    show_default=True,
)
def main(objects: int, size: int, latencies: list[int], turns: int, output: Path) -> None:
    """Read many small objects from Azurite: by the library's get_many, and by obstore.

    Each has as many requests in flight. In turns, against one server.
    """
    results: dict[str, Any] = {"objects": objects, "size": size}
    with azurite.start_azurite() as server:
        container = azurite.new_container(server.url)
        store = AzureStore(container, azurite.config(server.url))
        names = [f"wal/batches/{number:020d}" for number in range(objects)]
        rng = random.Random(7)
        kept = RetryingStore(store, RetryPolicy())
        list(run_parallel(kept, lambda name: kept.put(name, rng.randbytes(size)), names))
        for latency_ms in latencies:
            with _behind(server.url, latency_ms) as url:
                found = _measure(_runs(url, container, names), turns, objects * size)
            ours = found["get_many"]
            lines = [
                [
                    name,
                    f"{seconds:.2f}",
                    f"{cpu / objects * 1000:.2f}",
                    f"{seconds / ours[0]:.2f} ×",
                    f"{cpu / ours[1]:.2f} ×",
                ]
                for name, (seconds, cpu) in found.items()
            ]
            columns = ["", "s", "CPU ms an object", "of get_many's time", "of its CPU"]
            console.print(table(f"{objects:,} objects, +{latency_ms} ms", columns, lines))
            results[f"+{latency_ms} ms"] = lines
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
