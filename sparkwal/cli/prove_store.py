"""`sparkwal prove-store`: is a store fit for a log?"""

from __future__ import annotations

import platform
import random
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

import click

from sparkwal.cli.doctor_store import print_line, stores_at, takes_endpoints
from sparkwal.console.escape import escape
from sparkwal.console.options import as_json, takes_log_options
from sparkwal.console.output import facts, print_json
from sparkwal.store.base import Store
from sparkwal.store.conformance.s3 import server
from sparkwal.store.conformance.store_under_test import Trial
from sparkwal.store.conformance.suite import Finding, prove
from sparkwal.store.s3 import S3Store


@click.command()
@click.argument("url")
@takes_endpoints
@takes_log_options(endpoint=False)
@click.option("--rounds", default=12, show_default=True, type=click.IntRange(1, 10_000),
              help="Keys that are raced for, of each kind of race.")  # fmt: skip
@click.option("--threads", default=16, show_default=True, type=click.IntRange(2, 100),
              help="Writers that race for one key.")  # fmt: skip
@click.option("--seed", type=int, help="Repeats what was left to chance.")
@click.option("--thorough", is_flag=True, help="Also with more than a thousand objects.")
@as_json
def command(
    url: str, endpoints: tuple[str, ...], given: dict[str, str], rounds: int, threads: int,
    seed: int | None, thorough: bool, as_json: bool,
) -> None:  # fmt: skip
    """URL is s3://bucket, s3://bucket/folder or a folder. Writes objects of up to 8 MiB under
    {URL}/proof/, with a name of its own, and deletes them; a log at URL is not touched, and its
    writer is not fenced. Some 3,000 requests. Ctrl-C stops it and deletes them too.

    Exit code 0 only for a store that is fit. What it prints can be pasted into an issue: it
    holds no secret.
    """
    stores, prefix = stores_at(url, given, endpoints)
    trial = Trial(rounds, threads, random.randrange(2**32) if seed is None else seed, thorough)
    about = _about(url, stores, trial)
    if not as_json:
        facts(about)
        click.echo()

    def on_finding(each: Finding) -> None:
        if not as_json:
            print_line(each.outcome, each.check, each.found, each.means)

    report = prove(stores, prefix, trial, on_finding=on_finding)
    if as_json:
        print_json({
            **about, "seed": report.seed, "verdict": report.verdict, "fit": report.fit,
            "sentence": report.sentence, "checks": [asdict(each) for each in report.findings],
        })  # fmt: skip
    else:
        click.echo()
        colour = "green" if report.fit else "red"
        click.echo(click.style(escape(report.sentence), bold=True, fg=colour))
    if not report.fit:
        raise click.exceptions.Exit(1)


def _about(url: str, stores: list[Store], trial: Trial) -> dict[str, str]:
    remote = [store for store in stores if isinstance(store, S3Store)]
    return {
        "store": url,
        **({"endpoints": ", ".join(store.url for store in remote)} if remote else {}),
        **({"server": server(remote[0]) or "does not say"} if remote else {}),
        "date": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "versions": f"sparkwal {version('sparkwal')}, botocore {version('botocore')}, "
                    f"Python {platform.python_version()}, {platform.system()}",
        "trial": f"{trial.rounds} rounds, {trial.threads} threads, seed {trial.seed}"
                 + (", thorough" if trial.thorough else ""),
    }  # fmt: skip
