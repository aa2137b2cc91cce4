"""The place in another log at which a new query begins (PROTOCOL §12)."""

import dataclasses
import operator
import os
import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import SupportsIndex, Unpack

from sparkwal.checkpoints import carry
from sparkwal.errors import OptionError
from sparkwal.format.header import Origin
from sparkwal.options.keywords import StoreKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import EPOCH, timestamp
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.store.base import LogStore
from sparkwal.store.path import absolute


class Fork:
    """The place in another log at which a new query begins.

    The new query continues after the last commit of the query `name` at or before `at`, with the
    source's offsets of that commit. `sparkwal.checkpoint` takes it as `fork`.

    Examples:
        >>> fork = sparkwal.Fork("s3://bucket/wal", "orders", at=70_412)
        >>> folder = sparkwal.checkpoint("s3://bucket/wal-v2", "orders-v2", fork=fork)

    Args:
        path: the path of the log that holds the query.
        name: the name of the query, as for `sparkwal.checkpoint`, or its id.
        at: a position of that log; or a moment, as for `startingTimestamp`: the new query then
            writes again what that log holds since that moment. A text of up to 11 digits is a
            position.
        ignore_missing_files: begin although files on this machine's disks are missing which the
            forked query read after `at`. Their rows are not written again.
        **options: options of that log's store, and its `sequencer`. The default is those of
            `sparkwal.checkpoint`, without the sequencer.

    Raises:
        OptionError: an argument is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        at: SupportsIndex | str | datetime,
        *,
        ignore_missing_files: bool = False,
        **options: Unpack[StoreKeywords],
    ) -> None:
        self.path = path
        self.name = check_name(name)
        self.at = at
        self.ignore_missing_files = ignore_missing_files
        self._options = options
        position, moment_ms = parse_at(at)
        self.position = position
        self.moment_ms = moment_ms or 0

    def __repr__(self) -> str:
        return f"Fork({str(self.path)!r}, {self.name!r}, at={self.text!r})"

    @property
    def text(self) -> str:
        """The place as a text: digits for a position."""
        if self.position is not None:
            return str(self.position)
        return _moment(self.moment_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def open_forked(fork: Fork, inherited: Mapping[str, object]) -> LogStore:
    """Open the log that is forked, without a request.

    Args:
        fork: the fork.
        inherited: the options of the new log's store.

    Raises:
        OptionError: an option or the path is wrong.
    """
    own = {name.lower() for name in fork._options} | {"sequencer"}
    of_store = {field.metadata["name"].lower() for field in dataclasses.fields(StoreOptions)}
    options = {
        name: value
        for name, value in inherited.items()
        if name.lower() in of_store and name.lower() not in own
    }
    parsed = from_keywords(StoreOptions, fork.path, {**options, **fork._options})
    parsed = dataclasses.replace(parsed, path=absolute(parsed.path))
    return with_copies(open_log(parsed, fail_fast=True))


def parse_at(at: SupportsIndex | str | datetime) -> tuple[int | None, int | None]:
    """Parse a place in a log.

    Returns:
        The position or None, and the moment in milliseconds since 1970 or None.

    Raises:
        OptionError: it is neither a position nor a moment.
    """
    position = position_of(at)
    if position is not None:
        return position, None
    try:
        if not isinstance(at, (str, datetime)):
            raise ValueError
        moment_ms = timestamp(at if isinstance(at, str) else at.isoformat())
        # A moment beyond Python's calendar has no text.
        _moment(moment_ms)
        return None, moment_ms
    except (ValueError, OverflowError):
        raise OptionError(
            f"at is {str(at)[:80]!r} ({type(at).__name__}); a position such as 70412 or a moment "
            "such as 2026-01-31T12:00:00Z is expected"
        ) from None


def _moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def position_of(at: object) -> int | None:
    """A position from a whole number of any type, or from its digits; None for anything else.

    Twelve digits and more are milliseconds since 1970.
    """
    if isinstance(at, str):
        text = at.strip()
        return int(text) if re.fullmatch("[0-9]{1,11}", text) else None
    if isinstance(at, bool) or not isinstance(at, SupportsIndex):
        return None
    try:
        number = operator.index(at)
    except TypeError:  # an array or a null may have the method
        return None
    return number if number >= 0 else None


def check_name(name: object) -> str:
    """Check the name of a query.

    Raises:
        OptionError: it is no short printable text.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        raise OptionError(f"name is {repr(name)[:80]}; a short printable text is expected")
    return name


def query_id_of(log_id: str, name: str) -> str:
    """The id of a query of a log. `name` may be the id itself."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"sparkwal:{log_id}/{name}"))


def check_same_fork(
    fork: Fork, forked: LogStore, log: LogStore, name: str, origin: Origin | None
) -> None:
    """Check that a query which the log holds began with this fork.

    It costs no request, unless the fork names its log by another path or endpoint than then.

    Raises:
        OptionError: the query began elsewhere.
    """
    if origin is not None:
        is_place = fork.text in (origin.at, str(origin.position))
        is_query = query_id_of(origin.log_id, fork.name) == origin.query_id
        if is_place and is_query:
            if forked.identity == origin.log:
                return
            live = find_head(forked).live
            if live is not None and live.header.log_id == origin.log_id:
                return
    began = carry.beginning(origin)
    if origin is not None and origin.at != str(origin.position):
        began = f"{began} (at={origin.at})"
    raise OptionError(
        f"query {name!r} of {log.url} began {began}, and fork is {fork.name!r} at {fork.text} of "
        f"{forked.identity}. A query begins once: remove the fork or give the same one. For "
        "another begin use another name and another log"
    )


def after_the_end(log: LogStore, position: int, last: int) -> OptionError:
    """The error for a position that the log does not have."""
    return OptionError(
        f"at is {position}, and the last position of {log.url} is {last}: fork at a position that "
        "the log has"
    )
