"""The appender for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwal import Appender, AsyncAppender, Log, verify
from sparkwal.appender import aio
from sparkwal.appender.aio import durable
from sparkwal.errors import BackPressureError, FencedError, OptionError
from tests.appender import inside
from tests.appender.faulty_store import FaultyStore, stored
from tests.logs import SCHEMA, rows, until


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


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


def test_back_pressure_is_awaited_and_the_event_loop_keeps_running() -> None:
    faulty = FaultyStore()

    async def scenario() -> None:
        async with faulty.async_appender(maxInFlightRequests=1, maxBufferedBytes="1kb") as wal:
            first = faulty.gap()
            faulty.hold(first)
            tasks = [asyncio.create_task(wal.append(rows(0)))]
            await asyncio.to_thread(until, lambda: first in faulty.arrived)
            tasks += [asyncio.create_task(wal.append(rows(i))) for i in range(1, 500)]
            while not inside.queued(wal):
                await asyncio.sleep(0)
            with pytest.raises(BackPressureError):
                await wal.accept(rows(-1), block=False)
            assert not any(task.done() for task in tasks)
            faulty.release(first)
            positions = await asyncio.gather(*tasks)
            assert positions == sorted(positions)

    run(scenario)
    assert stored(faulty.inner) == list(range(500))


def test_the_awaiting_task_gets_the_error() -> None:
    faulty = FaultyStore()

    async def scenario() -> None:
        async with faulty.async_appender() as wal:
            with pytest.raises(OptionError):
                await wal.append([{"x": 1}])
            with pytest.raises(OptionError):
                await wal.append([{"v": "x"}])
            other = faulty.appender("other")
            with pytest.raises(FencedError):
                await wal.append(rows(1))
            other.close()

    run(scenario)


def test_a_cancelled_append_that_was_accepted_is_written() -> None:
    faulty = FaultyStore()

    async def scenario() -> None:
        async with faulty.async_appender() as wal:
            first = faulty.gap()
            faulty.hold(first)
            task = asyncio.create_task(wal.append(rows(1)))
            await asyncio.to_thread(until, lambda: first in faulty.arrived)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            ticket = await wal.accept(rows(2))
            faulty.release(first)
            await durable(ticket)
            await wal.flush()
            assert wal.last_sequence == 1

    run(scenario)


def test_an_append_before_async_with_raises(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await AsyncAppender(str(tmp_path), SCHEMA, producer_id="p").append(rows(1))

    run(scenario)


def test_under_back_pressure_appends_keep_their_order() -> None:
    faulty = FaultyStore()
    count = 400

    async def scenario() -> None:
        async with faulty.async_appender(maxInFlightRequests=1, maxBufferedBytes="2kb") as wal:
            accepted: list[int] = []

            async def send(value: int) -> None:
                await wal.accept(rows(value))
                accepted.append(value)

            tasks = []
            for value in range(count):
                tasks.append(asyncio.create_task(send(value)))
                # Newcomers at every moment: before a waiter's turn, and between two turns.
                if value % 7 == 0:
                    await asyncio.sleep(0.001)
            await asyncio.gather(*tasks)
            assert accepted == list(range(count))

    run(scenario)
    assert stored(faulty.inner) == list(range(count))


def test_waiting_for_room_does_not_ask_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = FaultyStore()
    asked = 0

    async def scenario() -> None:
        nonlocal asked
        async with faulty.async_appender(
            maxInFlightRequests=1, maxBufferedBytes="8kb", batchSizeThreshold="8kb"
        ) as wal:
            first = faulty.gap()
            faulty.hold(first, first + 1)
            await wal.accept(rows(0))
            await asyncio.to_thread(until, lambda: first in faulty.arrived)
            await wal.accept(rows(1))  # there is room for one more byte, but not for these:
            large = rows(*range(2, 50))
            admit = wal.appender.admit_unsynced

            def counted(*args: Any, **kwargs: Any) -> Any:
                nonlocal asked
                asked += 1
                return admit(*args, **kwargs)

            wait_room = wal.appender.wait_room
            monkeypatch.setattr(wal.appender, "admit_unsynced", counted)
            # It looks by itself once a second, which may pass here.
            monkeypatch.setattr(wal.appender, "wait_room", lambda _: wait_room(60))
            task = asyncio.create_task(wal.append(large))
            await asyncio.to_thread(until, lambda: inside.waits_for_room(wal.appender))
            for _ in range(50):
                await asyncio.sleep(0)
            assert asked == 2 and not task.done()
            faulty.release(first, first + 1)
            await task

    run(scenario)


def test_a_cancelled_open_does_not_fence_the_next_appender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = FaultyStore()
    opening = threading.Event()
    go_on = threading.Event()
    opened: list[Appender] = []

    def slow(*given: Any, **more: Any) -> Appender:
        opening.set()
        assert go_on.wait(30)
        opened.append(Appender(*given, **more))
        return opened[-1]

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(aio, "Appender", slow)
            wal = faulty.async_appender()
        task = asyncio.create_task(wal.__aenter__())
        await asyncio.to_thread(opening.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()  # its requests may be under way
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OptionError, match="is closed"):
            opened[0].append(rows(0))
        async with faulty.async_appender() as after:
            await after.append(rows(1))

    run(scenario)
    assert stored(faulty.inner) == [1]
