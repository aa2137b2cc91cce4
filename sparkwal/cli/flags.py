"""What every command and job is given: the options of a log, from flags and files."""

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.options.types import duration, timestamp


def key_values(given: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE arguments as a dict. The value may be a secret: no message repeats it."""
    return dict(
        _pair(item, f"the {option} number {place} is not NAME=VALUE")
        for place, item in enumerate(given, 1)
    )


def _pair(text: str, wrong: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise Refused(wrong)
    return name.strip(), value


T = TypeVar("T")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def options(
    reads: Callable[..., dict[str, Any]], *added: Decorator, names: Iterable[str] = ()
) -> Decorator:
    """Add options to a command. It gets what `reads` makes of their values in place of them; those
    are called as the parameters of `reads`, or `names`."""
    names = [*names] or signature(reads).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**values: Any) -> None:
            mine = {name: values.pop(name) for name in names if name in values}
            command(**values, **reads(**mine))

        decorated: Callable[..., None] = call
        for each in reversed(added):
            decorated = each(decorated)
        return decorated

    return decorate


def takes_log_options(
    of: str = "log", example: str = "region=eu-central-1", like: str = "", *, endpoint: bool = True
) -> Decorator:
    """--endpoint, --log-option and --options-file for a command, which gets them as `given`.

    Args:
        like: ", as in" and a file that shows them.
        endpoint: False for a command with an --endpoint of its own.
    """
    own = click.option(
        "--endpoint", "store_endpoint", metavar="URL", help="Of an S3-compatible store."
    )
    pairs = click.option(
        "--log-option",
        "log_options",
        multiple=True,
        metavar="NAME=VALUE",
        help=f"An option of the {of}, for example {example}; repeatable. Not for secrets: other "
        "users of the machine see a command line.",
    )
    file = click.option(
        "--options-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Options of the {of}, `name = value` a line{like}; --log-option wins over it.",
    )
    return options(_given, *([own] if endpoint else []), pairs, file)


def _given(
    log_options: Iterable[str], options_file: Path | None, store_endpoint: str | None = None
) -> dict[str, Any]:
    pairs = key_values(log_options, "--log-option")
    if store_endpoint is not None and "endpoint" in map(str.lower, pairs):
        raise Refused("--endpoint and --log-option endpoint=…: give one of them")
    given: dict[str, str] = {}
    try:
        lines = options_file.read_text(encoding="utf-8").splitlines() if options_file else []
    except UnicodeDecodeError:
        raise Refused(f"{options_file} is no text in UTF-8") from None
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and line[0] != "#":
            name, value = _pair(line, f"line {number} of {options_file} is not `name = value`")
            given[name] = value.strip()
    given |= pairs
    if "path" in map(str.lower, given):
        raise Refused("the log's path is an argument, and not `path` among the options")
    return {"given": with_flags(given, endpoint=store_endpoint)}


def with_flags(given: dict[str, str], **flags: str | None) -> dict[str, str]:
    """The options with those of flags that were given, whatever the case of a name."""
    chosen = {name: value for name, value in flags.items() if value is not None}
    return {name: value for name, value in given.items() if name.lower() not in chosen} | chosen


takes_sequencer = click.option(
    "--sequencer", metavar="NAME", help="The independent log of this name under PATH."
)
takes_every = click.option(
    "--all", "every", is_flag=True, help="All logs under PATH, one after another."
)
# `takes_log_options`, PATH as `path`, and --sequencer, which joins `given`.
takes_log = options(
    lambda given, sequencer: {"given": with_flags(given, sequencer=sequencer)},
    click.argument("path"),
    takes_sequencer,
    takes_log_options(),
)
# As `takes_log`, and --all: `given` then asks for all logs under the path.
takes_logs = options(
    lambda given, every: {"given": with_flags(given, sequencers="*" if every else None)},
    takes_log,
    takes_every,
)


def named_or_all(sequencers: str | None, every: bool) -> str | None:
    """--sequencers and --all as the option: names, "*" or None. Raises Refused."""
    if every and sequencers is not None:
        raise Refused("--sequencers and --all: give one of them")
    if sequencers == "*":
        raise Refused("--sequencers takes names: give --all for all logs")
    if sequencers is not None and not sequencers.strip(", "):
        raise Refused("--sequencers names no log: give names, or leave it out for the default log")
    return "*" if every else sequencers


as_json = click.option("--json", "as_json", is_flag=True, help="For programs: JSON, no colours.")
EXAMPLES = "1h (an hour ago), 30min, 2026-01-31T12:00:00Z"
EXPECTED = "a time before now such as 1h or 30min, a moment such as 2026-01-31T12:00:00Z (UTC \
unless it says otherwise), or milliseconds since 1970 is expected"


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a duration, which is before now, or a moment as startingTimestamp
    takes it. Raises ValueError."""
    text = text.strip()
    if text.isdecimal():
        return timestamp(text)  # distinguishes seconds from microseconds
    with suppress(ValueError):
        return max(now_ms - duration(text), 0)
    with suppress(ValueError):
        return timestamp(text)
    raise ValueError(EXPECTED)


def _callback(parse: Callable[[str], T]) -> Callable[..., T | None]:
    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as expected:
            raise click.BadParameter(f"{value!r}: {expected}") from None

    return read


def _with_unit(text: str) -> str:
    with suppress(ValueError):
        if not text.strip().isdecimal():
            duration(text)
            return text
    raise ValueError("this is no time of at most 36500d with its unit, as 7d, 24h or 30min")


def takes_interval(default: str, help: str) -> Decorator:
    """--interval in milliseconds: a day at most, for no wait can be much longer."""
    return click.option(
        "--interval",
        default=default,
        show_default=True,
        metavar="TIME",
        help=help,
        callback=_callback(lambda text: min(duration(_with_unit(text)), 86_400_000)),
    )


# The callback of a TIME: milliseconds since 1970.
as_moment = _callback(lambda text: moment_ms(text, time.time_ns() // 1_000_000))
# Of a time with a unit: without one it would be milliseconds, and data goes.
time_with_unit = _callback(_with_unit)
