"""`sparkwal prove-store`: is a store fit for a log?"""

import platform
import random
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.cli.flags import as_json, takes_log_options, with_flags
from sparkwal.cli.output import escape, facts, print_json
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
    help="Of an S3-compatible store; repeatable: all its endpoints are tried together.",
)


def stores_at(
    path: str, given: dict[str, str], endpoints: Sequence[str]
) -> tuple[list[Store], str]:
    """One store for each endpoint, each call one attempt; and the prefix of the path in them."""
    if is_local(path) and endpoints:
        raise Refused("a folder has no endpoint: remove --endpoint, or write s3://bucket/folder")
    asked = [with_flags(given, endpoint=each) for each in endpoints] or [given]
    options = [from_keywords(SourceOptions, path, each) for each in asked]
    opened = [open_store(path, each.s3, each.retry) for each in options]
    return [retrying.store for retrying, _ in opened], opened[0][1]


def print_line(outcome: str, name: str, said: str, more: str = "") -> None:
    """One finding on a line; what it means, or what to do, on the next one."""
    # Not a table: each line comes when it is known, and none is cut.
    mark = click.style(f"{outcome.upper() if outcome != 'ok' else 'ok':8}", _COLOURS.get(outcome))
    click.echo(f"{mark}{name}: {escape(said)}")
    if more:
        click.echo(f"        → {escape(more)}")


@click.command()
@click.argument("url")
@takes_endpoints
@takes_log_options(endpoint=False)
@click.option(
    "--rounds",
    default=12,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Keys that are raced for, of each kind of race.",
)
@click.option(
    "--threads",
    default=16,
    show_default=True,
    type=click.IntRange(2, 100),
    help="Writers that race for one key.",
)
@click.option("--seed", type=int, help="Repeats what was left to chance.")
@click.option("--thorough", is_flag=True, help="Also with more than a thousand objects.")
@as_json
def command(
    url: str,
    endpoints: tuple[str, ...],
    given: dict[str, str],
    rounds: int,
    threads: int,
    seed: int | None,
    thorough: bool,
    as_json: bool,
) -> None:
    """URL is s3://bucket, s3://bucket/folder or a folder. Writes objects of up to 8 MiB under
    {URL}/proof/, with a name of its own, and deletes them; a log at URL is not touched, and its
    writer is not fenced. Some 3,000 requests. Ctrl-C stops it and deletes them too.

    Exit code 0 only for a store that is fit. What it prints can be pasted into an issue: it
    holds no secret.
    """
    stores, prefix = stores_at(url, given, endpoints)
    trial = Trial(rounds, threads, random.randrange(2**32) if seed is None else seed, thorough)
    about = {
        "store": url,
        "endpoints": ", ".join(store.url for store in stores),
        "date": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "versions": f"sparkwal {version('sparkwal')}, botocore {version('botocore')}, "
        f"Python {platform.python_version()}, {platform.system()}",
        "trial": f"{rounds} rounds, {threads} threads, seed {trial.seed}" + ", thorough" * thorough,
    }
    if not as_json:
        facts(about)
        click.echo()

    findings = []
    for each in prove(stores, prefix, trial, CHECKS):
        findings.append(each)
        if not as_json:
            print_line(each.outcome, each.check, each.found, each.means)
    report = Report(tuple(findings))
    if as_json:
        print_json(
            {
                **about,
                "seed": trial.seed,
                "verdict": report.verdict,
                "fit": report.fit,
                "sentence": report.sentence,
                "checks": [asdict(each) for each in findings],
            }
        )
    else:
        click.secho(f"\n{escape(report.sentence)}", bold=True, fg="green" if report.fit else "red")
    if not report.fit:
        raise click.exceptions.Exit(1)
