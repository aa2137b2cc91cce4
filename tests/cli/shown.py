"""Logs of numbered rows, and what `cat`, `head` and `tail` print of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SOURCE = str(Path(sparkwal.__file__).parents[1])


def run(*arguments: object, code: int = 0) -> str:
    """Run a command and return its standard output."""
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def lines(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "--json").splitlines()]


def ids(*arguments: object) -> list[int]:
    return [row["id"] for row in lines(*arguments)]


def append(where: object, *ids: int, schema: pa.Schema = SCHEMA, **options: Any) -> None:
    """A leader record, then a commit of one row for each number."""
    given = {"maxInFlightRequests": 1, **options}
    with sparkwal.Appender(str(where), schema, producer_id="p", **given) as wal:
        for number in ids:
            row = {"id": number, "name": f"n{number}"}
            wal.append([{name: row.get(name) for name in schema.names}]).result()
