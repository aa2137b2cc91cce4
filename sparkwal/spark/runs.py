"""Which runs of queries have ended: the session notes it, and planners on its machine read it."""

from __future__ import annotations

from pathlib import Path

from pyspark import SparkFiles


def ended_runs() -> Path:
    """The file of `protocol.hint.note_ended`, in the folder that Spark makes for the application
    and removes with it. In a planner it is the session's; under Spark Connect nobody writes it."""
    return Path(SparkFiles.getRootDirectory()) / "sparkwal-ended-runs"
