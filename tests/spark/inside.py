"""What tests ask a reader of Spark that no method shows: only this module reads private names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkwal.protocol.holds import Holds


def is_on_another_machine(reader: Any, folder: Path) -> None:
    """Let a reader share no file with the other streams of this machine."""
    reader._publisher._holds = Holds(folder)


def forget_logs(reader: Any) -> None:
    """Let a reader of all sequencers look for them, as after a pause."""
    reader._logs._by_name.clear()
