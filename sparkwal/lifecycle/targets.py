"""Checks of a table's place, and of the way rows reach it."""

from sparkwal.errors import OptionError, PlanError
from sparkwal.format.keys import sequencers_prefix
from sparkwal.format.lifecycle_record import Target
from sparkwal.options.store import StoreOptions
from sparkwal.store.path import overlap, refuse_credentials, scheme_of

# The names of S3 in the URLs of tables.
_S3 = ("s3", "s3a", "s3n")


def check_apart(path: str, target: Target) -> None:
    """Check that neither of a log and its table is inside the other.

    Raises:
        OptionError: a cleanup of the table's folder would delete the log, or a log of a sequencer
            under `path`.
    """
    above, separator, name = path.strip().rstrip("/").rpartition("/" + sequencers_prefix(""))
    # The path may be that of a sequencer's log: then check the path above it.
    log = above if separator and "/" not in name else path
    if target.keeps_tombstones:
        _, scheme_end, location = target.table.partition("://")
        if scheme_end and "/" not in location:
            raise OptionError(
                f"{target.table} is a whole bucket, and the deleted keys of a table are kept "
                "beside it: give the table a folder, or tombstoneHorizon=0"
            )
        if overlap(log, target.tombstones):
            raise OptionError(
                f"{target.tombstones} keeps the deleted keys of the table {target.table}, and the "
                f"log {path} is there: name another table"
            )
    if overlap(log, target.table):
        raise OptionError(
            f"of the log {path} and the table {target.table} one is inside the other, and a "
            "cleanup of the table's folder would delete the log: give the table a folder beside "
            "the log"
        )


def check_place(table: str, options: StoreOptions) -> None:
    """Check a table that only the log names, before it is opened with this process's rights.

    Raises:
        OptionError: it may hold a secret, or it is on another store than the log and the options
            do not name it: a reader would connect to any server that the log names.
    """
    refuse_credentials(table, "the table's URL in the log")
    scheme, of_log = scheme_of(table), scheme_of(options.path)
    is_same = scheme == of_log or (scheme in _S3 and of_log in _S3)
    named = [each.strip().rstrip("/") for each in (options.table_location or "").split(",")]
    if not table.isprintable() or not (is_same or table.rstrip("/") in named):
        raise OptionError(
            f"the log names the table {table[:200]!r}, which is on another store than the log. "
            "Whoever writes the log could name any server, so a reader opens this table only with "
            "the option tableLocation: give it the URL of the table"
        )


def check_same_target(target: Target, fixed: Target) -> None:
    """Check that a run has the target that the first intent fixed.

    Raises:
        PlanError: it has another.
    """
    values = vars(target)
    if differences := [
        f"{name}: {_flag_text(value)} first, {_flag_text(values[name])} now"
        for name, value in vars(fixed).items()
        if values[name] != value
    ]:
        raise PlanError(
            "the first run of this log's compaction fixed its target: "
            f"{'; '.join(differences)}. Use the first target, or begin a new log"
        )


def _flag_text(value: int | str | tuple[str | tuple[str, str], ...]) -> str:
    """A value of a target, as the job's flag takes it."""
    if isinstance(value, int):
        return str(value)
    parts = (value,) if isinstance(value, str) else value
    texts = [part if isinstance(part, str) else "=".join(part) for part in parts]
    return ", ".join(texts) or "none"
