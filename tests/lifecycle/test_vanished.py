"""Logs of a path that vanish, and folders that are no logs: no other log waits for them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.base import LogStore
from tests.lifecycle.table import Died, dying_at
from tests.lifecycle.test_many_logs import (
    AT_ONCE,
    Listed,
    Lives,
    compacted,
    kinds_of_chain,
)


@pytest.fixture
def lives() -> Lives:
    return Lives()


def delete(lives: Lives, name: str) -> None:
    """Delete the folder of a log."""
    prefix = f"wal/sequencers/{name}/"
    for key in [key for key in lives.store.objects if key.startswith(prefix)]:
        lives.store.delete(key)


@pytest.mark.parametrize("together", [True, False])
def test_a_range_of_a_log_that_vanished_stops_no_other(lives: Lives, *, together: bool) -> None:
    lives.write("b")
    with dying_at(lives.table, "write"), suppress(Died):
        lives.process().run_all()
    delete(lives, "b")
    lives.write("a")
    if together:
        results = lives.process().run_all()
        assert compacted(results) == {"a": 2}
        assert isinstance(results["b"], SparkWalError)
    else:
        log = lives.root.sequencer("a")
        alone = Coordinator(log, AT_ONCE, table=lives.table, host="here")
        assert alone.run_once().compacted is not None
    assert lives.rows == [1]
    assert kinds_of_chain(lives)[:4] == ["intent", "burned", "intent", "done"]


def test_a_log_that_vanished_is_named(lives: Lives) -> None:
    for name in ("default", "a", "b"):
        lives.write(name, 2)
    process = lives.process()
    cut = process.run_all()["b"].cut  # type: ignore[union-attr]
    delete(lives, "b")
    lives.write("a")
    for run in (process, lives.process()):
        results = run.run_all()
        gone = results["b"]
        assert isinstance(gone, Run) and gone.found == "no log"
        assert (gone.cut, gone.floor) == (cut, cut)
        assert [*results] == ["default", "a", "b"]
    assert lives.rows == lives.written
    delete(lives, "a")
    for key in [key for key in lives.store.objects if key.startswith("wal/batches/")]:
        lives.store.delete(key)
    found = {name: run.found for name, run in lives.process().run_all().items()}  # type: ignore[union-attr]
    assert found == dict.fromkeys(("default", "a", "b"), "no log")


class WithoutFolders(Listed):
    """A store that lists no folders, as a local disk."""

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        return None


@pytest.mark.parametrize("store", [Listed, WithoutFolders])
@pytest.mark.parametrize("name", [".", "..", "", "a\nb", "a b", "é", "x.tmp", "default"])
def test_a_folder_whose_name_no_writer_may_use_is_no_log(
    lives: Lives, name: str, store: type[Listed]
) -> None:
    for log in ("a", "z"):
        lives.write(log)
    odd = store()
    odd.now_ms = lives.store.now_ms
    odd.objects = lives.store.objects
    for key in [key for key in odd.objects if "/z/" in key]:
        odd.objects[key.replace("/z/", f"/{name}/")] = odd.objects[key]
    odd.objects["wal/sequencers/file"] = b"?"
    root = LogStore(odd, "wal")
    assert all_logs(root) == ["a", "z"]
    assert compacted(lives.process(odd).run_all()) == {"a": 1, "z": 1}
    lives.write("z")
    assert compacted(lives.process(odd).run_all()) == {"z": 2}
    assert lives.rows == lives.written
