"""`sparkwal verify`: the proof that a log is sound."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.looking import logs_at
from sparkwal.cli.telling import facts, print_json, size
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.verification import Report, verify_store


@click.command()
@takes_logs
@as_json
def command(path: str, given: dict[str, str], as_json: bool) -> None:
    """Read every byte of the log at PATH and check it; works while others write.

    As many GETs as there are objects, and 1 LIST for a thousand. Exit code 1 where a log is not
    sound.
    """
    sound = True
    for log in logs_at(path, given):
        report = _verify(log, given)
        sound = sound and report.ok
        if as_json:
            print_json({**vars(report), "sequencer": log.name, "sound": report.ok})
        else:
            _tell(report)
    click.get_current_context().exit(0 if sound else 1)


def _verify(log: LogRange, given: dict[str, str]) -> Report:
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("verify"), BarColumn(30), MofNCompleteColumn(), TextColumn("positions"),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=None)
        report = verify_store(
            log.log, log.log.url, done=lambda done, total: bar.update(
                task, completed=done, total=total
            ),
        )  # fmt: skip
    if report.ok and report.head < 0:
        # A path with a typo must not pass for a sound log.
        report.problems.append(f"there is no log at {log.log.url}; check the path")
    return report


def _tell(report: Report) -> None:
    rows: dict[str, str | Text] = {
        "log": report.path,
        "positions": f"{report.floor}…{report.head}" if report.head >= report.floor else "none",
        "records": f"{report.commits:,} commits, {report.leaders:,} leader records, "
                   f"{report.dead:,} dead",
        "rows": f"{report.rows:,} in {size(report.bytes)}",
        "orphans": f"{len(report.orphans):,} objects that no record names; they harm nothing",
        "under way": f"{len(report.under_way):,} objects after the head",
        "verdict": Text("sound", "bold green"),
    }  # fmt: skip
    if not report.ok:
        told = "\n".join(report.problems)
        rows["verdict"] = Text(f"not sound\n{told}", "red")
    facts(rows)
