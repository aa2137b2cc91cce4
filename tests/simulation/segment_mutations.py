"""The mutations of segments: their makers, and readers that use them."""

from __future__ import annotations

from tests.simulation.mutation import Mutation

_AGAIN = "segments of a log that is recreated"
_DELETED = "segments are deleted under a reader"
_RESTORED = "segments of a former time line, a maker"

MUTATIONS = [
    Mutation(
        "segment-of-this-log",
        _AGAIN,
        "protocol/segments.py",
        "if header.log_id != log_id:",
        "if False:",
    ),
    Mutation(
        "segment-followed",
        _RESTORED,
        "protocol/segments.py",
        "is_followed = later is not None and later.segment.header.follows == header.last",
        "is_followed = later is not None",
    ),
    Mutation(
        "segment-witness",
        _RESTORED,
        "protocol/segments.py",
        "return record is not None and mark_of(record) == witness",
        "return True",
    ),
    Mutation(
        "copy-for-readers",
        "a record is lost under a reader that has a segment of it",
        "protocol/slots.py",
        "copy = log.copy_of(log, position, window) if log.copy_of is not None else None",
        "copy = None",
    ),
    Mutation(
        "segment-then-look-back",
        "two in flight, the store keeps a part, a takeover, a maker",
        "reading/segments.py",
        "term_before = term if last == stretch.start - 1 else None",
        "term_before = term",
    ),
    Mutation(
        "segment-falls-back",
        _DELETED,
        "protocol/segments.py",
        'return block, InvalidLogError(f"{location}: it was deleted meanwhile")',
        "raise",
    ),
    Mutation(
        "segment-rows-fall-back",
        _DELETED,
        "reading/copied_rows.py",
        'raise InvalidLogError(f"{self.segment.location}: it was deleted meanwhile")',
        "raise KeyError(self.key)",
    ),
    Mutation(
        "segment-decided",
        "a segment of a former time line whose last records are in the log",
        "reading/segmenting.py",
        "if decided_before(record.header) >= after:",
        "if position >= after:",
    ),
    Mutation(
        "segment-ends-decided",
        "a log ends with its block, and a record in flight is lost by a restore",
        "reading/segmenting.py",
        "if header.decided == header.position - 1:",
        "if True:",
    ),
    Mutation(
        "own-segment-decided",
        "an appender's own segment of a former time line",
        "appender/own_segments.py",
        "if waiting is not None and header.decided >= waiting.first + keys.BLOCK - 1:",
        "if waiting is not None:",
    ),
    Mutation(
        "segment-floor-after-read",
        "a maker while the log is collected, a stray leader",
        "reading/segmenting.py",
        "log.floor.check(first)\n            yield body\n",
        "yield body\n",
    ),
    Mutation(
        "records-of-one-log",
        "a maker sleeps while its log is recreated",
        "protocol/missing.py",
        "if record.header.log_id != log_id:",
        "if False:",
        elsewhere=(
            "format/segment.py",
            "(header.log_id, header.window) != (own.log_id, own.window)",
            "False",
        ),
    ),
]
