"""What people read of the options: in the data source's help, and in docs/options.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields

from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions

_TYPES = {
    "whole": "number",
    "duration": "time",
    "sequencer_name": "name",
    "consumer_name": "name",
    "timestamp": "moment",
    "account_id": "account",
    "star": "*",
    "parse_choice": "choice",
}


def described(
    kind: type[StoreOptions], listed: type[StoreOptions] | None
) -> Iterator[tuple[str, str, str]]:
    """Of each option, unless `listed` has the same: its name, type and default, and meaning."""
    known = {} if listed is None else {each.name: each.metadata for each in fields(listed)}
    for each in fields(kind):
        about = each.metadata
        if known.get(each.name) != about:
            parser = about["parse"].__name__
            default = about["shown"] or ("" if each.default is None else str(each.default).lower())
            shown = _TYPES.get(parser, parser) + (f"; {default}" if default else "")
            yield about["name"], shown, about["meaning"]


def option_paragraphs() -> str:
    lines: list[str] = []
    sections = ("reading and writing", StoreOptions), ("writing", SinkOptions)
    for section, kind in (*sections, ("reading", SourceOptions)):
        lines += ["", f"Options: {section}", ""]
        for name, shown, meaning in described(kind, None if kind is StoreOptions else StoreOptions):
            text = f"- {name} ({shown}): {meaning}"
            lines += textwrap.wrap(text, 84, subsequent_indent="  ")
    return "\n".join(lines)
