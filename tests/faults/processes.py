"""Spark applications as processes that can be found, stopped and killed, workers and all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sparkwal

TESTS = Path(__file__).resolve().parents[1]
JOBS = TESTS.parent / "jobs"
# -P: not from the folder that it happens to be started in.
DRIVER = [sys.executable, "-P", "-m", "faults.driver"]
# The limit for any step on a loaded machine.
PATIENCE = 180.0


class ApplicationEnded(RuntimeError):
    """The application ended, or missed a time limit; the text has its output."""


@dataclass(frozen=True)
class Process:
    """One line of the system's process table."""

    pid: int
    parent: int
    session: int
    command: str


def processes() -> Iterator[Process]:
    """Every process that is not yet dead."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it ended while we looked
            # The command's name may hold spaces and ")": count from the last one.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if fields[0] not in "ZX":
                yield Process(int(entry.name), int(fields[1]), int(fields[3]), command)


def python_workers(among: Iterable[Process]) -> list[int]:
    """Spark's Python workers: forked by its daemons, so with the same command line."""
    forked = {x.pid: x for x in among if "pyspark.daemon" in x.command}
    return [x.pid for x in forked.values() if x.parent in forked]


def send(pid: int, number: int) -> bool:
    """Send a signal to a child process; False if it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Return as soon as it holds; raise when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ApplicationEnded(f"after {seconds:.0f} s still not: {what}")
        time.sleep(0.02)


class Application:
    """A command in a separate session, so that all its descendants can be found.

    Python's daemons leave its process group, but not its session.

    Args:
        folder: receives its output, in {name}.out and {name}.err.
        temporary: its TMPDIR. Applications with the same one share sparkwal's hints.
        environment: its environment; by default that of this process.
        knows: whether it can import sparkwal, the jobs and the tests, and starts this Python.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        command: list[str],
        temporary: Path,
        environment: Mapping[str, str] | None = None,
        *,
        knows: bool = True,
    ) -> None:
        self.name, self.temporary = name, temporary
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        temporary.mkdir(parents=True, exist_ok=True)
        own = dict(os.environ if environment is None else environment)
        own["TMPDIR"] = str(temporary)
        if knows:
            here = str(Path(sparkwal.__file__).parents[1])
            path = [
                here,
                str(TESTS),
                str(JOBS),
                str(TESTS.parent),
                *filter(None, [own.get("PYTHONPATH")]),
            ]
            own |= {"PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command,
                env=own,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the command itself has not ended."""
        return self._process.poll() is None

    def lines(self) -> list[str]:
        """Its reports so far."""
        return self._out.read_text(errors="replace").splitlines()

    def errors(self) -> str:
        """Its output on stderr."""
        return self._err.read_text(errors="replace")

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Return as soon as it holds. Raises ApplicationEnded when the command ended before."""

        def ready() -> bool:
            ended = not self.alive
            if holds():
                return True
            if ended:
                raise ApplicationEnded(
                    f"{self.name} ended, not yet: {what}\n{self.errors()[-3000:]}"
                )
            return False

        wait_until(ready, f"{self.name}: {what}")

    def wait_line(self, beginning: str) -> None:
        """Wait until it reported a line that begins so."""
        self.wait_for(lambda: any(x.startswith(beginning) for x in self.lines()), beginning)

    def write_line(self, line: str) -> None:
        """Write a line to its stdin, unless it has ended."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def close_stdin(self) -> None:
        """No more lines come: a driver ends after its present work."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def members(self) -> list[Process]:
        """All processes of its session."""
        return [x for x in processes() if x.session == self._process.pid]

    def workers(self) -> list[int]:
        """Spark's Python workers."""
        return python_workers(self.members())

    def executors(self) -> list[int]:
        """Executors that are processes of their own."""
        return [x.pid for x in self.members() if "CoarseGrainedExecutorBackend" in x.command]

    def signal(self, number: int) -> None:
        """To every process of the session."""
        for member in self.members():
            send(member.pid, number)

    def kill(self, *, orphans: bool = False) -> None:
        """SIGKILL, as a machine that is switched off would.

        Args:
            orphans: kill only the command and the JVM; Spark's Python workers run until they
                notice it.
        """
        for member in self.members():
            if not orphans or "pyspark.daemon" not in member.command:
                send(member.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Kill all its processes, and wait for their end."""

        def empty() -> bool:
            self.signal(signal.SIGKILL)
            return not self.members()

        wait_until(empty, f"{self.name} is dead")
        self._process.wait()
        self.close_stdin()

    def exit_code(self) -> int:
        """Wait for the end of the command."""
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ApplicationEnded(f"{self.name} does not end\n{self.errors()[-3000:]}") from None


class Driver(Application):
    """A program that starts Spark, then does one piece of work after another.

    Args:
        program: its command.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *arguments: str,
        temporary: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (*DRIVER, "--standby"),
    ) -> None:
        command = [*program, *arguments]
        super().__init__(name, folder, command, temporary or folder / f"{name}.tmp", environment)
        self._reported_before = 0

    def lines(self) -> list[str]:
        """The reports of its present work."""
        return super().lines()[self._reported_before :]

    @property
    def idle(self) -> bool:
        """Whether it waits for work."""
        return self.alive and "ready" in self.lines()

    def go(self, **work: object) -> None:
        """Hand over its next work: the driver's options by name."""
        self.wait_line("ready")
        self._reported_before = len(super().lines())
        self.write_line(json.dumps(work, default=str))

    def finish(self) -> None:
        """Wait until its work is done. Raises ApplicationEnded when its query failed."""
        self.wait_line("ready")
        if self.failures() and self.lines()[-2] == f"failed {self.failures()[-1]}":
            raise ApplicationEnded(f"{self.name}: {self.failures()[-1]}\n{self.errors()[-3000:]}")

    def batch(self) -> int:
        """The last microbatch it reported; −1 before the first."""
        reported = [line.split()[1] for line in self.lines() if line.startswith("batch ")]
        return max(map(int, reported), default=-1)

    def wait_batch(self, number: int) -> None:
        """Wait until it reported this microbatch or a later one."""
        self.wait_for(lambda: self.batch() >= number, f"batch {number}")

    def failures(self) -> list[str]:
        """The error lines of its queries, in order."""
        return [x.removeprefix("failed ") for x in self.lines() if x.startswith("failed ")]
