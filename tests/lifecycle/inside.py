"""What tests ask a coordinator that no method shows: only this module reads its private names."""

from __future__ import annotations

from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.protocol.recovery import Head


def known_head(process: Coordinator, name: str) -> Head | None:
    """The head of a log as the coordinator has seen it last."""
    return process._known[name].head
