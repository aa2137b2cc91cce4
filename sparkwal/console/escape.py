"""What a log says, made safe to be printed."""

from __future__ import annotations

import json

# They join letters of some scripts, and move nothing.
_JOINERS = "\u200c\u200d"


def escape(text: str, keeps: str = "") -> str:
    r"""A text of strangers without what a terminal obeys: controls, marks of direction and other
    invisible characters become \u001b and the like, as in JSON; `keeps` stay. A log's writers
    choose the names of its hosts, leaders and columns."""
    if text.isprintable():  # as most are
        return text
    keeps += _JOINERS
    return "".join(
        each if each.isprintable() or each in keeps else json.dumps(each)[1:-1] for each in text
    )
