"""`sparkwal prove-store`: prove that a store is fit for a log."""

import platform
import random
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.cli.flags import as_json, options, takes_log_options, with_flags
from sparkwal.cli.output import facts, print_json
from sparkwal.errors import escape
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import Store
from sparkwal.store.conformance.checks import CHECKS
from sparkwal.store.conformance.suite import Report, Trial, prove
from sparkwal.store.open import open_store
from sparkwal.store.path import is_local

_COLOURS = {"ok": "green", "wrong": "red", "to do": "red", "limit": "yellow", "unknown": "yellow"}

takes_endpoints = click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="URL",
    help="The URL of an S3-compatible store; repeatable: it races writes through all of them.",
)


def stores_at(
    path: str, log_options: dict[str, str], endpoints: Sequence[str]
) -> tuple[list[Store], str]:
    """Open one store for each endpoint, without retries.

    Returns:
        The stores, and the prefix of the path in them.

    Raises:
        Refused: the path is a folder, which has no endpoint.
    """
    if is_local(path) and endpoints:
        raise Refused("a folder has no endpoint: remove --endpoint, or write s3://bucket/folder")
    for_endpoints = [with_flags(log_options, endpoint=url) for url in endpoints] or [log_options]
    parsed = [from_keywords(SourceOptions, path, one) for one in for_endpoints]
    opened = [open_store(path, one.s3, one.retry) for one in parsed]
    return [retrying.store for retrying, _ in opened], opened[0][1]


def print_line(outcome: str, name: str, finding: str, advice: str = "") -> None:
    """Print a finding on a line, and on the next line its meaning or what to do."""
    # Not a table: each line appears as soon as its check ends, and no line is cut.
    mark = click.style(f"{outcome.upper() if outcome != 'ok' else 'ok':8}", _COLOURS.get(outcome))
    click.echo(f"{mark}{name}: {escape(finding)}")
    if advice:
        click.echo(f"        → {escape(advice)}")


def _trial(rounds: int, threads: int, seed: int | None, *, thorough: bool) -> dict[str, Trial]:
    seed = random.randrange(2**32) if seed is None else seed
    return {"trial": Trial(rounds, threads, seed, thorough)}


# Adds the size of a trial. The command receives `trial`.
_takes_trial = options(
    _trial,
    click.option(
        "--rounds",
        default=12,
        show_default=True,
        type=click.IntRange(1, 10_000),
        help="Keys for which writers race, in each kind of race.",
    ),
    click.option(
        "--threads",
        default=16,
        show_default=True,
        type=click.IntRange(2, 100),
        help="Writers that race for one key.",
    ),
    click.option("--seed", type=int, help="The seed of an earlier trial, to repeat it."),
    click.option("--thorough", is_flag=True, help="Also check with more than a thousand objects."),
)


@click.command()
@click.argument("url")
@takes_endpoints
@takes_log_options(endpoint=False)
@_takes_trial
@as_json
def command(
    url: str,
    endpoints: tuple[str, ...],
    log_options: dict[str, str],
    trial: Trial,
    *,
    as_json: bool,
) -> None:
    """URL is s3://bucket, s3://bucket/folder or a folder. This command writes objects of up to
    8 MiB under {URL}/proof/ and deletes them, also after Ctrl-C. It does not change a log at URL
    and does not fence its writer. It makes some 3,000 requests.

    Exit code 0: the store is fit. The output contains no secret, so you may paste it into an
    issue.
    """
    stores, prefix = stores_at(url, log_options, endpoints)
    about = {
        "store": url,
        "endpoints": ", ".join(store.url for store in stores),
        "date": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "versions": f"sparkwal {version('sparkwal')}, botocore {version('botocore')}, "
        f"Python {platform.python_version()}, {platform.system()}",
        "trial": f"{trial.rounds} rounds, {trial.threads} threads, seed {trial.seed}"
        + (", thorough" if trial.thorough else ""),
    }
    if not as_json:
        facts(about)
        click.echo()

    findings = []
    for finding in prove(stores, prefix, trial, CHECKS):
        findings.append(finding)
        if not as_json:
            print_line(finding.outcome, finding.check, finding.found, finding.means)
    report = Report(tuple(findings))
    if as_json:
        print_json(
            {
                **about,
                "seed": trial.seed,
                "verdict": report.verdict,
                "fit": report.fit,
                "sentence": report.sentence,
                "checks": [asdict(finding) for finding in findings],
            }
        )
    else:
        click.secho(f"\n{escape(report.sentence)}", bold=True, fg="green" if report.fit else "red")
    if not report.fit:
        raise click.exceptions.Exit(1)
