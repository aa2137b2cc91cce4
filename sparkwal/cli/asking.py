"""What every command is given: the options of a log, from flags and files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from sparkwal.cli.exits import Refused


def key_values(given: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE arguments as a dict. The value may be a secret: no message repeats it."""
    found: dict[str, str] = {}
    for place, item in enumerate(given, 1):
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise Refused(f"the {option} number {place} is not NAME=VALUE")
        found[name.strip()] = value
    return found


def read_options_file(path: Path | None) -> dict[str, str]:
    """The options of a file of `name = value` lines; # begins a comment line."""
    if path is None:
        return {}
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Refused(f"line {number} of {path} is not `name = value`")
        found[name.strip()] = value.strip()
    return found


def takes_log_options(
    of: str = "log", example: str = "endpoint=http://127.0.0.1:9000", like: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--log-option and --options-file for a command, which gets the options as `given`.

    Args:
        of: what they are options of, for people.
        like: ", as in" and a file that shows them.
    """
    pairs = click.option(
        "--log-option", "log_options", multiple=True, metavar="NAME=VALUE",
        help=f"An option of the {of}, for example {example}; repeatable. Not for secrets: other "
        "users of the machine see a command line.",
    )  # fmt: skip
    file = click.option(
        "--options-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Options of the {of}, `name = value` a line{like}; --log-option wins over it.",
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def read(log_options: Iterable[str], options_file: Path | None, **others: Any) -> None:
            given = {**read_options_file(options_file), **key_values(log_options, "--log-option")}
            command(given=given, **others)

        return pairs(file(read))

    return decorate


takes_sequencer = click.option(
    "--sequencer", metavar="NAME", help="The independent log of this name under PATH."
)
takes_every = click.option(
    "--sequencers", type=click.Choice(["*"]), help="All logs under PATH, one after another."
)


def takes_log(command: Callable[..., None]) -> Callable[..., None]:
    """PATH, --endpoint, --sequencer, --log-option and --options-file of one log.

    The command gets `path`, and as `given` the options for `sparkwal.Log` and its like.
    """

    @functools.wraps(command)
    def read(
        endpoint: str | None, sequencer: str | None, given: dict[str, str], **others: Any
    ) -> None:
        flags = {"endpoint": endpoint, "sequencer": sequencer}
        told = {name: value for name, value in flags.items() if value is not None}
        kept = {name: value for name, value in given.items() if name.lower() not in told}
        command(given={**kept, **told}, **others)

    path = click.argument("path")
    endpoint = click.option("--endpoint", metavar="URL", help="Of an S3-compatible store.")
    return path(endpoint(takes_sequencer(takes_log_options()(read))))


def takes_logs(command: Callable[..., None]) -> Callable[..., None]:
    """As `takes_log`, and --sequencers: `given` then asks for all logs under the path."""

    @functools.wraps(command)
    def read(sequencers: str | None, given: dict[str, str], **others: Any) -> None:
        command(given={**given, "sequencers": sequencers} if sequencers else given, **others)

    return takes_log(takes_every(read))


as_json = click.option("--json", "as_json", is_flag=True, help="For programs: JSON, no colours.")
