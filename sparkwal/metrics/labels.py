"""Which log a URL names, as the first two labels of every metric."""

from __future__ import annotations

import re
from typing import NamedTuple

from sparkwal.format.keys import ROOT

# As a sequencer: every one of the log.
ALL = "*"
_SEQUENCER = re.compile(r"(?P<log>.*[^/])/sequencers/(?P<name>[^/]+)")


class Labels(NamedTuple):
    """Which log.

    Attributes:
        log: the URL of the path, which holds no secret.
        sequencer: the log's name under it.
    """

    log: str
    sequencer: str


def labels_of(url: str) -> Labels:
    """Of the log at `LogStore.url`; a sequencer lies under the path."""
    match = _SEQUENCER.fullmatch(url)
    return Labels(match["log"], match["name"]) if match else Labels(url, ROOT)
