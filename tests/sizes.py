"""The sizes of the tests: markers name the needs of a test; a run orders and spreads the tests.

A fixture brings its marker with it; other tests bear theirs. A test without a marker is fast: it
fails when it starts a process.
"""

from __future__ import annotations

import json
import multiprocessing.util
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

NEEDS = ("spark", "s3", "process", "slow")
# Every test that uses a fixture gets the marker of the fixture.
OF_FIXTURES = {
    "spark": "spark",
    "delta": "spark",
    "all_drivers": "spark",
    "ministack_url": "s3",
    "moto_url": "s3",
    "azurite_url": "process",
    "fake_gcs_url": "process",
}
# One worker runs all tests of such a fixture: each other would start and warm up another JVM.
SHARED = ("spark", "all_drivers")
STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
)

# matplotlib lists the fonts of a machine once, at its first use, and keeps the list.
OF_LIBRARIES = ("fc-list",)


class Starts:
    """Counts the processes that a test without a marker tries to start, and prevents them."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.watching = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.watching and event in STARTS and not {*arguments[:1]} & {*OF_LIBRARIES}:
            # Arguments and environment may hold secrets.
            started = " ".join([event, *map(str, arguments[:1])])
            self.refused.append(started)
            raise PermissionError(f"a fast test starts no process: {started}")


STARTED = pytest.StashKey[Starts]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = starts = Starts()
    sys.addaudithook(starts)
    # multiprocessing starts programs without an audit event.
    spawn = multiprocessing.util.spawnv_passfds

    def spawn_audited(path: str, arguments: list[bytes], descriptors: list[int]) -> int:
        sys.audit("os.spawn", path)
        return spawn(path, arguments, descriptors)

    multiprocessing.util.spawnv_passfds = spawn_audited


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks a test with the needs of its fixtures."""
    names = getattr(item, "fixturenames", ())
    for marker in sorted({OF_FIXTURES[name] for name in names if name in OF_FIXTURES}):
        item.add_marker(marker)
    for name in SHARED:
        if name in names:
            item.add_marker(pytest.mark.xdist_group(name))


def needs(item: pytest.Item) -> list[str]:
    return [name for name in NEEDS if item.get_closest_marker(name)]


def protects(item: pytest.Item) -> str:
    """The rules that a test proves, and the statement of its docstring or its name."""
    keys = [key for marker in item.iter_markers("proves") for key in marker.args]
    function = getattr(item, "function", None)
    stated = (getattr(function, "__doc__", None) or "").partition("\n\n")[0].split()
    words = " ".join(stated) or getattr(item, "originalname", item.name)[5:].replace("_", " ")
    return f"{', '.join(keys)}: {words}" if keys else words


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from _watched(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from _watched(item)


def _watched(item: pytest.Item) -> Generator[None]:
    """A test without a marker fails if it starts a process."""
    starts = item.config.stash[STARTED]
    starts.watching = not needs(item)
    try:
        yield
    finally:
        starts.watching = False
        refused, starts.refused = starts.refused, []
        if refused:
            pytest.fail(
                f"a test without a marker of {', '.join(NEEDS)} starts a process: {refused[0]}",
                pytrace=False,
            )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Notes the needs and the promise of each test for the report of a run.

    In a worker the longest tests begin first, so that no worker ends with them alone. The others
    keep their order.
    """
    for item in items:
        item.user_properties += [("needs", " ".join(needs(item))), ("protects", protects(item))]
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: (
                not item.get_closest_marker("xdist_group"),
                not item.get_closest_marker("spark"),
            )
        )


def groups_file(run: str) -> Path:
    """The file in which the workers of a run leave {test: group} before they report their tests.

    xdist 3.8 loses the groups of tests that pytest 9.2 collects.
    """
    return Path(tempfile.gettempdir(), f"sparkwal-tests-{run}.json")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        marked = [(item.nodeid, item.get_closest_marker("xdist_group")) for item in session.items]
        groups = {test: marker.args[0] for test, marker in marked if marker}
        file = groups_file(worker["testrunuid"])
        draft = file.with_suffix(f".{worker['workerid']}")
        draft.write_text(json.dumps(groups))
        draft.replace(file)


class Scheduling(LoadScopeScheduling):
    """A worker takes a file at a time, and one takes all tests of a group."""

    groups: Mapping[str, str] = MappingProxyType({})

    def schedule(self) -> None:
        if self.collection is None:
            file = groups_file(self.nodes[0].workerinput["testrunuid"])
            self.groups = json.loads(file.read_text())
            file.unlink()
        super().schedule()

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker its next unit when only its last test is left.

        A worker begins a test when it knows the next one. xdist gives out the next unit two tests
        earlier, where it may wait for a long test while another worker has nothing to do.
        """
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self.groups.get(nodeid) or nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
