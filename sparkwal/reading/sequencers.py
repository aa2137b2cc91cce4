"""Sequencers: independent logs under one path, for more than one writer at a time.

Each lies under `{path}/sequencers/{name}/` and has its own order, leader and positions. Rows of one
key stay in order if they always go to the same sequencer.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Unpack

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.format.keys import ROOT, batches_prefix, is_log_folder, sequencers_prefix
from sparkwal.options.keywords import SourceKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import ALL
from sparkwal.reading.listing import list_logs, sequencer_names
from sparkwal.store.base import LogStore, numbered


def sequencer_for(key: object, count: int) -> str:
    """Choose the sequencer for the rows of a key.

    It is the CRC-32 of the key's canonical bytes, modulo `count`: the same on every machine and in
    every version.

    Args:
        key: a number, a text, bytes, a date, None, or a tuple of them.
        count: the number of sequencers.

    Returns:
        The name of one of `count` sequencers: "0" … str(count − 1).

    Raises:
        OptionError: `count` is below 1, or the key has no canonical form.
    """
    if count < 1:
        raise OptionError(f"count is {count}; at least one sequencer is needed")
    return str(crc32(encode_key(key)) % count)


def encode_key(key: object) -> bytes:
    """Encode a key into its canonical bytes.

    They are a letter for its kind, then:

    - n: no further bytes, for None
    - b: a boolean, "0" or "1"
    - i: an integer in decimal digits; a float or Decimal that is whole counts as one
    - f: a float, 8 bytes IEEE 754, big-endian (every NaN as one)
    - d: a Decimal in digits without trailing zeros
    - s: a text in UTF-8
    - y: bytes
    - t: a date or time in ISO 8601, with a time zone in UTC
    - l: a tuple or list: each element's length (4 bytes, big-endian) and bytes

    Args:
        key: a number, a text, bytes, a date, None, or a tuple or list of them.

    Returns:
        The bytes.

    Raises:
        OptionError: the key has another type.
    """
    if key is None:
        return b"n"
    if isinstance(key, bool):
        return b"b1" if key else b"b0"
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, float):
        if key.is_integer():
            return b"i%d" % int(key)
        return b"f" + struct.pack(">d", key if key == key else float("nan"))
    if isinstance(key, Decimal):
        if key.is_finite() and key == key.to_integral_value():
            return b"i%d" % int(key)
        # normalize() would round to the precision of this thread's context.
        return b"d" + format(key, "f").rstrip("0").encode()
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, (bytes, bytearray, memoryview)):
        return b"y" + bytes(key)
    if isinstance(key, datetime) and key.tzinfo is not None:
        return b"t" + key.astimezone(UTC).isoformat().encode()
    if isinstance(key, (date, datetime)):
        return b"t" + key.isoformat().encode()
    if isinstance(key, (tuple, list)):
        parts = [encode_key(part) for part in key]
        return b"l" + b"".join(struct.pack(">I", len(part)) + part for part in parts)
    if type(key).__module__ == "numpy" and hasattr(key, "item"):
        return encode_key(key.item())
    raise OptionError(
        f"a {type(key).__name__} is no key; use a number, a text, bytes, a date or a tuple of them"
    )


def partition_by(
    rows: pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]],
    columns: str | Sequence[str],
    count: int,
) -> dict[str, Any]:
    """Divide rows among sequencers by a key.

    Args:
        rows: a RecordBatch, a Table or a list of dicts.
        columns: the key: the name of one column, or several names.
        count: the number of sequencers.

    Returns:
        The rows of each sequencer that gets any, in their order, by its name. `Appender.append`
        takes each of these parts.

    Raises:
        OptionError: the rows have no such column, or a key has no canonical form.
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    keys: Iterable[tuple[Any, ...]]
    try:
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            keys = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
        else:
            keys = [tuple(row[name] for name in names) for row in rows]
    except KeyError as error:
        raise OptionError(f"the rows have no column {error.args[0]!r}") from None
    parts: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        name = sequencer_for(key[0] if isinstance(columns, str) else key, count)
        parts.setdefault(name, []).append(row)
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return {name: rows.take(pa.array(numbers)) for name, numbers in parts.items()}
    return {name: [rows[row] for row in numbers] for name, numbers in parts.items()}


def list_sequencers(path: str, **options: Unpack[SourceKeywords]) -> list[str]:
    """List the logs under a path.

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        **options: as for `sparkwal.Log`, without `sequencer` and `sequencers`.

    Returns:
        Their names. "default" is the log at the path itself.

    Raises:
        OptionError: an option or the path is wrong.
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(SourceOptions, path, options)
    if settings.sequencer != ROOT or settings.sequencers:
        raise OptionError("sequencers are listed under a path: remove sequencer and sequencers")
    return all_logs(open_log(settings, fail_fast=True))


def logs_of(root: LogStore, options: SourceOptions) -> list[str]:
    """The names of the logs under a path that these options read; see `all_logs` for the cost."""
    if options.sequencers is None:
        return [options.sequencer]
    return all_logs(root) if options.sequencers == ALL else options.sequencers.split(",")


def all_logs(root: LogStore) -> list[str]:
    """List the sequencers under a path, sorted, after ROOT if there is a log at the path itself.

    It costs 2 LISTs, and 1 more for each thousand sequencers. A store that cannot list folders
    takes more: 1 LIST for each sequencer of a thousand objects, and fewer for smaller ones.
    """
    names = sequencer_names(root)
    if names is None:
        return [*list_logs(root)]
    own = [ROOT] if has_log(root) else []
    return [*own, *sorted(set(names))]


def has_log(log: LogStore) -> bool:
    """Whether a log has any object: 1 LIST, and 1 more for each object of another program."""
    return any(numbered(log.store, batches_prefix(log.prefix), limit=1))


def no_log_at(log: LogStore) -> str:
    """The text of an error: there is no log. It names a sequencer if the path has one: 1 LIST."""
    root = log.root
    of = "" if log == root else f" of sequencer {log.name}"
    text = f"there is no log{of} at {log.url}"
    if name := a_sequencer(root):
        return (
            f"{text}, but {root.url} has sequencers, such as {name}: name one (sequencer, "
            '--sequencer), or read all (sequencers="*", --all)'
        )
    return f"{text}; check the path"


def a_sequencer(root: LogStore) -> str | None:
    """One of the sequencers under a path, for a message: 1 LIST.

    None if there is none, or if the store does not show it: a message must not become an error.
    """
    folder = sequencers_prefix(root.prefix)
    with suppress(SparkWalError):
        for entry in root.store.list(folder, 1).entries:
            name = entry.key.removeprefix(folder).partition("/")[0]
            if is_log_folder(name):
                return name
    return None
