"""Which log a URL names, as labels."""

from __future__ import annotations

import re

from sparkwal.format.keys import ROOT
from sparkwal.metrics.table import Place

_SEQUENCER = re.compile(r"(?P<log>.*[^/])/sequencers/(?P<name>[^/]+)")


def place_of(url: str) -> Place:
    """The labels of the log at `LogStore.url`; a sequencer lies under the path."""
    match = _SEQUENCER.fullmatch(url)
    return Place(match["log"], match["name"]) if match else Place(url, ROOT)
