"""The list of commands, and how each of them ends."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import COMMANDS, main


def ran(*arguments: str, code: int = 0) -> str:
    """What a command prints, and that it ends with this exit code."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A log of three commits of one row."""
    where = str(tmp_path / "log")
    with sparkwal.Appender(where, pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        for value in range(3):
            wal.append([{"v": value}]).result()
    return where


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_tells_of_each_command_what_its_help_does(name: str) -> None:
    command = import_module(f"sparkwal.cli.{name.replace('-', '_')}").command
    assert command.help.partition("\n\n")[0].replace("\n", " ") == COMMANDS[name]
    assert COMMANDS[name] in " ".join(ran("--help").split())


def test_the_status_of_a_log(path: str) -> None:
    head = sparkwal.Log(path).head()
    assert head is not None
    told = json.loads(ran("status", path, "--json"))
    assert (told["position"], told["log_id"]) == (head.position, head.log_id)
    assert head.log_id in ran("status", path)


def test_no_log_is_exit_code_1_and_a_wrong_option_2(tmp_path: Path) -> None:
    assert "there is no log" in ran("status", str(tmp_path / "none"), code=1)
    assert "s3" in ran("status", "gopher://x", code=2)
