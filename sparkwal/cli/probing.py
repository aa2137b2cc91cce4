"""The stores that a command tries, and how it tells what each check found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from sparkwal.cli.exits import Refused
from sparkwal.cli.plain import plain
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import Store
from sparkwal.store.local import LocalStore
from sparkwal.store.path import bucket_and_prefix, folder, is_local
from sparkwal.store.s3 import S3Store

_COLOURS = {"ok": "green", "wrong": "red", "to do": "red", "limit": "yellow", "unknown": "yellow"}

takes_endpoints = click.option(
    "--endpoint", "endpoints", multiple=True, metavar="URL",
    help="Of an S3-compatible store; repeatable: all its endpoints are tried together.",
)  # fmt: skip


def stores_at(
    path: str, given: Mapping[str, str], endpoints: Sequence[str]
) -> tuple[list[Store], str]:
    """One store for each endpoint, each call one attempt; and the prefix of the path in them.

    Raises OptionError, Refused.
    """
    if is_local(path):
        if endpoints:
            raise Refused(
                "a folder has no endpoint: remove --endpoint, or write s3://bucket/folder"
            )
        return [LocalStore(folder(path))], ""
    bucket, prefix = bucket_and_prefix(path)
    others = {name: value for name, value in given.items() if name.lower() != "endpoint"}
    asked = [{**others, "endpoint": each} for each in endpoints] or [dict(given)]
    return [S3Store(bucket, from_keywords(SourceOptions, path, each).s3) for each in asked], prefix


def told_line(outcome: str, name: str, said: str, more: str = "") -> None:
    """One finding on a line; what it means, or what to do, on the next one."""
    # Not a table: each line comes when it is known, and none is cut.
    mark = click.style(f"{outcome.upper() if outcome != 'ok' else 'ok':8}", _COLOURS.get(outcome))
    click.echo(f"{mark}{name}: {plain(said)}")
    if more:
        click.echo(f"        → {plain(more)}")
