"""Options that commands and jobs share: those of a log, from flags and files, and times."""

import functools
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import click

from sparkwal.cli.exit_codes import Refused
from sparkwal.errors import escape
from sparkwal.options.types import duration, timestamp


def key_values(arguments: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE arguments as a dict. A value may be a secret, so no message repeats one.

    Raises:
        Refused: an argument is not NAME=VALUE.
    """
    return dict(
        _pair(argument, f"the {option} number {number} is not NAME=VALUE")
        for number, argument in enumerate(arguments, 1)
    )


def _pair(text: str, message: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise Refused(message)
    return name.strip(), value


def private_text(file: Path, flag: str, *, warns: Callable[[str], bool]) -> str:
    """Read a file of a flag that may hold secrets.

    Args:
        file: the file.
        flag: the flag that names it, for messages.
        warns: whether a file with this text should be closed to the other users of the machine.

    Raises:
        Refused: each user of the machine may write to the file, or it is no text.
    """
    with file.open(encoding="utf-8") as opened:
        status = os.fstat(opened.fileno())
        # A pipe has no other readers.
        mode = status.st_mode if stat.S_ISREG(status.st_mode) else 0
        shown = escape(str(file))
        if mode & stat.S_IWOTH:
            raise Refused(
                f"{flag} {shown}: each user of this machine may write to it, and so change what "
                f"this process does: chmod o-rw {shown}, and look at its content"
            )
        try:
            text = opened.read()
        except UnicodeDecodeError:
            raise Refused(f"{flag} {shown} is no text in UTF-8") from None
    if mode & stat.S_IROTH and warns(text):
        click.echo(
            f"{flag} {shown} holds secrets that each user of this machine may read: "
            f"chmod o-rw {shown}",
            err=True,
        )
    return text


T = TypeVar("T")
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def options(
    convert: Callable[..., dict[str, Any]], *decorators: Decorator, names: Iterable[str] = ()
) -> Decorator:
    """Add options to a command and convert their values.

    Args:
        convert: receives the options' values as keywords; the command receives its result instead.
        *decorators: add the options to the command.
        names: the options that `convert` takes. The default is the names of its parameters.
    """
    names = [*names] or signature(convert).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**values: Any) -> None:
            to_convert = {name: values.pop(name) for name in names if name in values}
            command(**values, **convert(**to_convert))

        decorated: Callable[..., None] = call
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate


def takes_log_options(
    of: str = "log", example: str = "region=eu-central-1", like: str = "", *, endpoint: bool = True
) -> Decorator:
    """Add --endpoint, --log-option and --options-file. The command receives `log_options`.

    Args:
        of: for the help text: "log" or "appender".
        example: for the help text: one option.
        like: for the help text: ", as in" and the name of a file with such options.
        endpoint: False for a command that defines --endpoint itself.
    """
    endpoint_option = click.option(
        "--endpoint", "store_endpoint", metavar="URL", help="The URL of an S3-compatible store."
    )
    pairs = click.option(
        "--log-option",
        "option_pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help=f"An option of the {of}, for example {example}; repeatable. Not for secrets: other "
        "users of the machine see a command line.",
    )
    file = click.option(
        "--options-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Options of the {of}, `name = value` a line{like}; --log-option overrides it.",
    )
    return options(_merge_log_options, *([endpoint_option] if endpoint else []), pairs, file)


def _merge_log_options(
    option_pairs: Iterable[str], options_file: Path | None, store_endpoint: str | None = None
) -> dict[str, Any]:
    pairs = key_values(option_pairs, "--log-option")
    if store_endpoint is not None and "endpoint" in map(str.lower, pairs):
        raise Refused("--endpoint and --log-option endpoint=…: give one of them")
    log_options: dict[str, str] = {}
    lines: list[str] = []
    if options_file:
        lines = private_text(options_file, "--options-file", warns=_has_secret).splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and line[0] != "#":
            name, value = _pair(line, f"line {number} of {options_file} is not `name = value`")
            log_options[name] = value.strip()
    log_options |= pairs
    if "path" in map(str.lower, log_options):
        raise Refused("the log's path is an argument, and not `path` among the options")
    return {"log_options": with_flags(log_options, endpoint=store_endpoint)}


def _has_secret(text: str) -> bool:
    # The key's id alone is no secret.
    return any(name in text.lower() for name in ("secretaccesskey", "sessiontoken"))


def with_flags(log_options: dict[str, str], **flags: str | None) -> dict[str, str]:
    """The options, overridden by each flag that is not None. Case of names does not matter."""
    overrides = {name: value for name, value in flags.items() if value is not None}
    others = {name: value for name, value in log_options.items() if name.lower() not in overrides}
    return others | overrides


takes_sequencer = click.option(
    "--sequencer",
    metavar="NAME",
    help="The independent log of this name under PATH. Without it, commands that look at the log "
    "at PATH itself make 1 LIST more, and note that there are others.",
)
takes_all = click.option("--all", "all_sequencers", is_flag=True, help="All logs under PATH.")
# Adds PATH as `path`, the options of `takes_log_options`, and --sequencer, a part of `log_options`.
takes_log = options(
    lambda log_options, sequencer: {"log_options": with_flags(log_options, sequencer=sequencer)},
    click.argument("path"),
    takes_sequencer,
    takes_log_options(),
)
# Adds --all to `takes_log`: `log_options` then has `sequencers` = "*".
takes_logs = options(
    lambda log_options, all_sequencers: {
        "log_options": with_flags(log_options, sequencers="*" if all_sequencers else None)
    },
    takes_log,
    takes_all,
)


def named_or_all(sequencers: str | None, *, all_sequencers: bool) -> str | None:
    """The option `sequencers` of --sequencers and --all: names, "*" or None.

    Raises:
        Refused: the flags contradict each other, or --sequencers holds no name.
    """
    if all_sequencers and sequencers is not None:
        raise Refused("--sequencers and --all: give one of them")
    if sequencers == "*":
        raise Refused("--sequencers takes names: give --all for all logs")
    if sequencers is not None and not sequencers.strip(", "):
        raise Refused("--sequencers names no log: give names, or leave it out for the default log")
    return "*" if all_sequencers else sequencers


as_json = click.option("--json", "as_json", is_flag=True, help="For programs: JSON, no colours.")
EXAMPLES = "1h (an hour ago), 30min, 2026-01-31T12:00:00Z"
EXPECTED = "expected a time before now such as 1h or 30min, a moment such as \
2026-01-31T12:00:00Z (UTC by default), or milliseconds since 1970"


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a duration before now, or of a moment as in startingTimestamp.

    Raises:
        ValueError: the text is neither.
    """
    text = text.strip()
    if text.isdecimal():
        return timestamp(text)  # rejects seconds and microseconds
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
    raise ValueError("expected a time with a unit, at most 36500d, such as 7d, 24h or 30min")


def takes_interval(default: str, help: str) -> Decorator:
    """--interval in milliseconds, at most a day: `select.poll` cannot wait much longer."""
    return click.option(
        "--interval",
        default=default,
        show_default=True,
        metavar="TIME",
        help=help,
        callback=_callback(lambda text: min(duration(_with_unit(text)), 86_400_000)),
    )


# A click callback for TIME: milliseconds since 1970.
as_moment = _callback(lambda text: moment_ms(text, time.time_ns() // 1_000_000))
# A click callback for a time that must have a unit. `--retain 7` would be 7 ms and delete data.
time_with_unit = _callback(_with_unit)
