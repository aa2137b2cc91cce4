"""The Spark session, errors and exit codes of the jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import sparkwal
from sparkwal.cli.exit_codes import Failed, Refused
from sparkwal.errors import SparkWalError, escape
from sparkwal.options.store import StoreOptions
from sparkwal.spark import sessions
from sparkwal.spark.readable import readable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
EXIT_CODES = """
\b
Exit codes:
    0  done
    1  the query failed; see the message. Run it again to continue
    2  wrong usage: an option, a path or a schema. It wrote nothing
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM; run it again to continue
"""


def open_log_at(path: str, options: Mapping[str, str]) -> sparkwal.Log:
    """Open a log without Spark. Options that are not about the store are ignored."""
    names = {field.metadata["name"].lower() for field in dataclasses.fields(StoreOptions)}
    of_store = {name: value for name, value in options.items() if name.lower() in names}
    return sparkwal.Log(path, **of_store)


def need_spark() -> None:
    """Check that a supported PySpark is installed.

    Raises:
        Refused: PySpark is not installed, or too old.
    """
    try:
        sessions.need_spark()
    except SparkWalError as error:
        raise Refused(str(error)) from None


def need_delta(what: str = "--format delta") -> None:
    """Check that Delta Lake is available, as `sessions.need_delta`.

    Raises:
        Refused: it is not.
    """
    try:
        sessions.need_delta(what)
    except SparkWalError as error:
        raise Refused(str(error)) from None


def start_session(app: str, **arguments: Any) -> SparkSession:
    """Start a Spark session with the settings of conf/, as `sessions.start_session`.

    Raises:
        Failed: Spark did not start.
        Refused: PySpark is not installed, or too old.
    """
    try:
        return sessions.start_session(app, conf=ROOT / "conf", **arguments)
    except SparkWalError as error:
        raise exit_for(error) from None


def exit_for(error: BaseException) -> click.ClickException:
    """The exception that ends a job with this error's message and exit code."""
    message, wrong = readable(error)
    message = escape(message, keep="\n")
    return Refused(message) if wrong else Failed(message)
