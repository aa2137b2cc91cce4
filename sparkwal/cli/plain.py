"""What a log says, made safe to be printed: the one place where it is."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys

# They join letters of some scripts, and move nothing.
_JOINERS = "\u200c\u200d"


def plain(text: str, keeps: str = "") -> str:
    r"""A text of strangers without what a terminal obeys: controls, marks of direction, and what
    else cannot be seen, are written as in JSON, as \u001b.

    Whoever may write to a log names its hosts, leaders and columns.

    Args:
        keeps: characters that stay.
    """
    if text.isprintable():  # as most are
        return text
    keeps += _JOINERS
    return "".join(
        each if each.isprintable() or each in keeps else json.dumps(each)[1:-1] for each in text
    )


def takes_colours() -> bool:
    """Whether a terminal may be sent colours; a pipe never is."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def spells_out_the_rest() -> None:
    """Characters that the encoding of an output lacks are written as in JSON too: they end
    nothing, and JSON says the same with them."""
    codecs.register_error("sparkwal.json", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparkwal.json")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
