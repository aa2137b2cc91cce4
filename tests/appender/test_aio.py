"""The appender for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sparkwal import AsyncAppender, Log, verify
from sparkwal.appender.aio import durable
from sparkwal.errors import BackPressureError, FencedError, OptionError

from .plot import PREFIX, SCHEMA, Plot, rows, until


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


class OverPlot(AsyncAppender):
    """An AsyncAppender over a Plot."""

    def __init__(self, plot: Plot, **options: object) -> None:
        super().__init__(PREFIX, SCHEMA, producer_id="p")
        self._open = lambda: plot.appender(**options)


def test_a_thousand_concurrent_appends_are_in_the_order_of_their_calls(tmp_path: Path) -> None:
    path = str(tmp_path / "log")

    async def scenario() -> None:
        async with AsyncAppender(path, SCHEMA, producer_id="p") as wal:
            positions = await asyncio.gather(*(wal.append(rows(i)) for i in range(1000)))
            assert positions == sorted(positions)
            assert wal.last_sequence == 999

    run(scenario)
    assert list(Log(path).to_pandas()["v"]) == list(range(1000))
    assert verify(path).ok


def test_back_pressure_is_awaited_while_the_loop_goes_on() -> None:
    plot = Plot()

    async def scenario() -> None:
        async with OverPlot(plot, maxInFlightRequests=1, maxBufferedBytes="1kb") as wal:
            first = plot.gap()
            plot.hold(first)
            tasks = [asyncio.create_task(wal.append(rows(0)))]
            await asyncio.to_thread(until, lambda: first in plot.arrived)
            tasks += [asyncio.create_task(wal.append(rows(i))) for i in range(1, 500)]
            while not wal._turn.locked():
                await asyncio.sleep(0)
            with pytest.raises(BackPressureError):
                await wal.accept(rows(-1), block=False)
            assert not any(task.done() for task in tasks)
            plot.release(first)
            positions = await asyncio.gather(*tasks)
            assert positions == sorted(positions)

    run(scenario)
    from .plot import stored

    assert stored(plot.inner) == list(range(500))


def test_errors_arrive_where_they_are_awaited() -> None:
    plot = Plot()

    async def scenario() -> None:
        async with OverPlot(plot) as wal:
            with pytest.raises(OptionError):
                await wal.append([{"x": 1}])
            with pytest.raises(OptionError):
                await wal.append([{"v": "x"}])
            other = plot.appender("other")
            with pytest.raises(FencedError):
                await wal.append(rows(1))
            other.close()

    run(scenario)


def test_a_cancelled_append_that_was_accepted_is_written() -> None:
    plot = Plot()

    async def scenario() -> None:
        async with OverPlot(plot) as wal:
            first = plot.gap()
            plot.hold(first)
            task = asyncio.create_task(wal.append(rows(1)))
            await asyncio.to_thread(until, lambda: first in plot.arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            ticket = await wal.accept(rows(2))
            plot.release(first)
            await durable(ticket)
            await wal.flush()
            assert wal.last_sequence == 1

    run(scenario)


def test_it_is_opened_by_its_block_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await AsyncAppender(str(tmp_path), SCHEMA, producer_id="p").append(rows(1))

    run(scenario)
