"""Reports a query that is new in a log. It may be a query of the log that is about to repeat its
rows."""

from sparkwal import events
from sparkwal.format.header import REMOTE, STATEFUL, Checkpoints


def report_new_query(path: str, query: str, checkpoints: Checkpoints) -> None:
    """Emit `another_query`: it names the query that wrote last, and the action if both are the
    same."""
    query_id, last = max(checkpoints.items(), key=lambda item: item[1].position)
    other = last.name or query_id
    old_location = f"with the checkpointLocation that {other} had"
    restart = {
        STATEFUL: f"{old_location}. If that is lost, so is its state: let the source begin where "
        "the log ends",
        REMOTE: old_location,
    }.get(last.reason, f"with the folder of sparkwal.checkpoint(path, {other!r})")
    advice = (
        "this query has not written to this log yet, so it begins with its source's first rows. If "
        f"{other} reads the same source, those rows will be in the log twice. Stop this query, "
        f"and start it {restart}. Queries with different sources need no change"
    )
    events.emit(events.AnotherQuery(path, query, other, last.position, advice))
