"""A rule of the protocol, broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One rule of the protocol, broken, and the configuration that notices."""

    name: str
    where: str
    file: str  # below sparkwal/, or below tests/ for the simulation's own
    old: str
    new: str
    also: tuple[str, str] | None = None  # another edit of the file
    # A second check of the same rule: its file, and the edit.
    elsewhere: tuple[str, str, str] | None = None
