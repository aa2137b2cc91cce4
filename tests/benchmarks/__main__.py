"""How fast sparkwal is, beside what else writes to S3, and what it asks of a store."""

from __future__ import annotations

import click

from benchmarks import (
    aging,
    appender,
    checks,
    clouds,
    iceberg,
    journal,
    lake,
    logs,
    questions,
    restart,
    scale,
    segments,
    sinks,
    small_commits,
    stalls,
    state,
    triggers,
)


@click.group()
def main() -> None:
    """Measure sparkwal on this machine. `benchmark.sh COMMAND --help` shows the options."""


for _command in (
    sinks.main,
    aging.main,
    lake.main,
    logs.main,
    appender.main,
    journal.main,
    restart.main,
    scale.main,
    triggers.main,
    state.main,
    stalls.main,
    small_commits.main,
    segments.main,
    questions.main,
    checks.main,
    iceberg.main,
    clouds.main,
):
    main.add_command(_command)


if __name__ == "__main__":
    main()
