"""A store fails in every way while a stream writes: the stream continues, or raises with advice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from faults.processes import wait_until
from faults.storms import late_errors, lost_replies, overload, resets
from sparkwal.testing.proxy import Fault, S3Proxy
from tests.chaos.test_processes import fill, mount, unmount
from tests.spark.queries import assert_one_error, numbers, refused

# The storms below use up nine attempts now and then, 21 never.
STUBBORN = {"maxRetryAttempts": "20", "retryBaseDelayMs": "2"}
IMPATIENT = {"maxRetryAttempts": "1", "retryBaseDelayMs": "5"}


def run(
    spark, scene, batches: int, rows=None, then: list[Fault] | None = None, **options: str
) -> None:
    """Stream until so many more microbatches are noted; raises what the query failed with.

    Args:
        then: the proxy's faults from the first of them on.
    """
    stream = scene.stream()
    first = stream.noted + 1
    source = rows if rows is not None else numbers(spark, scene.rows, partitions=3)
    # Objects of their own, also for few rows: more requests that can fail.
    given = {"inlineThreshold": "0", **scene.writing, **options}
    writer = source.writeStream.format("weaselwal").options(**given)
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start(scene.log)

    def noted(number: int) -> None:
        wait_until(lambda: stream.noted >= number or not query.isActive, f"microbatch {number}")

    try:
        if then is not None:
            noted(first)
            scene.proxy.faults = then
        noted(first + batches - 1)
    finally:
        query.stop()
    if (failed := query.exception()) is not None:
        raise failed


# One goes through Spark always; tests/store has each fault, and what the writer makes of it.
OFTEN = "lost replies"
STORMS = {
    "refusals": overload(0.4),
    "a lost reply to every second put": [Fault("lost_reply", kind="PUT", probability=0.5)],
    "lost replies": lost_replies(0.4),
    "errors after the request took effect": late_errors(0.4),
    "resets within the body": resets(0.4),
}


@pytest.mark.proves("refused-read-back", "adopt-what-is-there")
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(faults, id=name, marks=[] if name == OFTEN else pytest.mark.slow)
        for name, faults in STORMS.items()
    ],
)
def test_a_stream_stores_each_row_once_despite(spark, on_s3, faults: list[Fault]) -> None:
    on_s3.proxy.faults = list(faults)
    run(spark, on_s3, 6, **STUBBORN)
    assert on_s3.proxy.injected.total() > 10
    on_s3.prove(least=6)


def test_a_store_that_refuses_longer_than_the_retries_stops_the_query_and_a_restart_heals(
    spark, on_s3
) -> None:
    run(spark, on_s3, 2, **IMPATIENT)
    on_s3.proxy.faults = [Fault("error", status=503)]
    shown = refused(lambda: run(spark, on_s3, 2, **IMPATIENT))
    assert_one_error(shown, "StoreUnavailableError", "503", "after 2 attempts")
    on_s3.proxy.faults = []
    run(spark, on_s3, 2, **IMPATIENT)
    on_s3.prove(least=4)


@pytest.mark.slow
def test_an_outage_stops_the_query_and_a_restart_continues(spark, on_s3) -> None:
    run(spark, on_s3, 2, **IMPATIENT)
    port = int(on_s3.proxy.url.rpartition(":")[2])
    on_s3.proxy.close()
    shown = refused(lambda: run(spark, on_s3, 2, **IMPATIENT))
    assert_one_error(shown, "StoreUnavailableError", "ould not connect")
    with S3Proxy(on_s3.options["endpoint"], port=port):
        run(spark, on_s3, 2, **IMPATIENT)
    on_s3.prove(least=4)


@pytest.mark.proves("no-answer-unknown")
def test_a_commit_that_is_stored_but_never_answered_is_unknown_and_a_restart_finds_it(
    spark, on_s3
) -> None:
    # Slots, and no other numbers of these windows, end in 615.
    lost = [Fault("lost_reply", kind="PUT", key_contains="615")]
    shown = refused(lambda: run(spark, on_s3, 99, then=lost, **IMPATIENT))
    assert_one_error(shown, "OutcomeUnknownError", "It may be durable", "same checkpoint")
    on_s3.proxy.faults = []
    stored = on_s3.prove().commits
    assert stored == on_s3.stream().noted + 2  # one more than Spark knows
    run(spark, on_s3, 2, **IMPATIENT)
    on_s3.prove(least=stored + 1)


def large(spark):
    """Microbatches of some 12 MB that nothing compresses, in one partition."""
    noise = ", ".join(f"sha2(cast(value * 4 + {i} as string), 512)" for i in range(4))
    return numbers(spark, 20_000).selectExpr("value", f"concat({noise}) as noise")


@pytest.mark.slow
def test_uploads_in_parts_survive_lost_completes_and_broken_parts(spark, on_s3) -> None:
    on_s3.rows = 20_000
    options = {"multipartThreshold": "5mb", "compression": "none"}
    on_s3.proxy.faults = [
        Fault("lost_reply", kind="COMPLETE_MULTIPART", times=2),
        Fault("error_after", kind="COMPLETE_MULTIPART", times=1),
        Fault("reset", kind="UPLOAD_PART", times=3),
        Fault("lost_reply", kind="CREATE_MULTIPART", times=1),
    ]
    run(spark, on_s3, 2, large(spark), **STUBBORN, **options)
    assert on_s3.proxy.injected.total() == 7
    # Parts that never arrive: the upload is given up, and the next query starts another.
    on_s3.proxy.faults = [Fault("reset", kind="UPLOAD_PART")]
    shown = refused(lambda: run(spark, on_s3, 1, large(spark), **IMPATIENT, **options))
    assert_one_error(shown, "StoreUnavailableError", "part of", "after 2 attempts")
    assert on_s3.proxy.counts()["ABORT_MULTIPART"] >= 1
    on_s3.proxy.faults = []
    run(spark, on_s3, 1, large(spark), **IMPATIENT, **options)
    on_s3.prove(least=3)


@pytest.mark.slow
def test_a_disk_that_is_full_or_read_only_stops_the_query_and_a_restart_heals(
    spark, on_disk, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=4m")
    on_disk.log = str(folder / "log")
    try:
        run(spark, on_disk, 2)
        fill(folder / "ballast")
        shown = refused(lambda: run(spark, on_disk, 2))
        assert_one_error(shown, "StoreUnavailableError", "disk full; free some space")
        (folder / "ballast").unlink()
        run(spark, on_disk, 2)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        shown = refused(lambda: run(spark, on_disk, 2))
        assert_one_error(shown, "OptionError", "read-only", "give this user access")
        on_disk.prove(least=4)
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        run(spark, on_disk, 2)
        on_disk.prove(least=6)
    finally:
        unmount(folder)
