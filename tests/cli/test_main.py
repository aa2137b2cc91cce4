"""The list of commands."""

from __future__ import annotations

from importlib import import_module

import pytest

from sparkwal.cli.main import COMMANDS

from .logs import ran


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_tells_of_each_command_what_its_help_does(name: str) -> None:
    command = import_module(f"sparkwal.cli.{name.replace('-', '_')}").command
    assert command.help.partition("\n\n")[0].replace("\n", " ") == COMMANDS[name]
    assert COMMANDS[name] in " ".join(ran("--help").split())


def test_a_wrong_option_is_exit_code_2() -> None:
    assert "s3" in ran("status", "gopher://x", code=2)
