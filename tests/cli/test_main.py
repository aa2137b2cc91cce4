"""The list of commands."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from sparkwal.cli.main import COMMANDS, find
from tests.cli.logs import ran
from tests.logs import append


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_repeats_the_first_line_of_each_help(name: str) -> None:
    assert COMMANDS[name] in " ".join(ran(name, "--help").split())
    assert COMMANDS[name] in " ".join(ran("--help").split())
    # Indentation of the source is no part of a paragraph.
    assert not re.search(r"[^ ] {5}[^ ]", ran(name, "--help").partition("Options:")[0])


# The meaning of each short flag; -n is the number of items that the command shows.
_SHORT = {"-f": "--follow", "-n": None, "-o": "--output"}


def test_a_flag_means_the_same_in_every_command() -> None:
    for name in COMMANDS.keys() - {"help"}:
        command = find(name)
        flags = [each for each in command.params if isinstance(each, click.Option)]
        for flag in flags:
            for short in (each for each in flag.opts if len(each) == 2):
                assert _SHORT[short] in (None, *flag.opts), (name, flag.opts)
        known = {each for flag in flags for each in flag.opts}
        assert known.isdisjoint({"--confirm", "--dry-run"}), name
        assert "--endpoint" in known, name
        # A name that a shell would take for files is not needed.
        assert not any(
            isinstance(flag.type, click.Choice) and "*" in flag.type.choices for flag in flags
        ), name


def test_an_endpoint_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    both = ["--endpoint", "http://127.0.0.1:9", "--log-option", "Endpoint=http://127.0.0.1:10"]
    assert "give one of them" in ran("status", "s3://bucket/wal", *both, code=2)
    file = tmp_path / "options"
    file.write_text("endpoint = http://127.0.0.1:10\n")
    both = ["--endpoint", "http://127.0.0.1:9", "--options-file", str(file)]
    assert "127.0.0.1:9/" in ran("status", "s3://bucket/wal", *both, code=1)


def test_a_wrong_option_is_exit_code_2(tmp_path: Path) -> None:
    assert "s3" in ran("status", "gopher://x", code=2)
    file = tmp_path / "options"
    for command in (("status", "wal"), ("verify", "wal"), ("checkpoint", "wal", "name")):
        assert "not `path`" in ran(*command, "--log-option", "Path=other", code=2)
        file.write_text("path = other\n")
        assert "not `path`" in ran(*command, "--options-file", str(file), code=2)
    file.write_bytes(b"region = \xff\n")
    assert "is no text in UTF-8" in ran("status", "wal", "--options-file", str(file), code=2)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("metrics wal", "backlog"),
        ("metrics wal", "meter"),
        ("checkpoint wal a", "name"),
        ("checkpoint wal a", "folder"),
    ],
)
def test_a_commands_metavar_is_no_option(command: str, name: str) -> None:
    assert f"option '{name}'" in ran(*command.split(), "--log-option", f"{name}=5", code=2)


@pytest.mark.parametrize("command", ["log", "tail"])
def test_a_pause_of_a_month_is_one_of_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    append(str(tmp_path / "log"), *range(2))
    asked: list[int] = []

    class Poll:
        def register(self, *_: int) -> None: ...

        def poll(self, interval: int) -> None:
            asked.append(interval)
            raise KeyboardInterrupt

    monkeypatch.setattr("select.poll", Poll)
    ran(command, str(tmp_path / "log"), "-f", "--interval", "30d", code=130)
    assert asked == [86_400_000]
