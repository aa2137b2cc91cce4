"""Builds the site: the pages of the documentation and a reference made from docstrings.

    python -m tests.docs.site     into site/

It fails on a link without a target and on a name that the reference does not have. The pages lie in
several folders: it copies them to one, and points their links at the copies.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparkwal
from tests.docs.pages import PAGES, ROOT
from tests.docs.tables import event_kinds

CONFIG = "conf/mkdocs.yml"
# The configuration names both folders.
STAGED = ".cache/site"
BUILT = "site"

# Pages of other folders → their names in the site. The rest keep theirs.
MOVED = {
    "README.md": "index.md",
    "sparkwal/PROTOCOL.md": "protocol.md",
    "tests/benchmarks/README.md": "figures.md",
    "tests/faults/README.md": "faults.md",
    "tests/simulation/README.md": "simulation.md",
    "tests/histories/README.md": "histories.md",
}
# Files that pages link to; the site has copies of them.
COPIED = (
    "conf/*",
    "conf/iam/*.json",
    "conf/azure/*",
    "conf/google/*",
    "notebooks/*.svg",
    "sparkwal/docs/*.svg",
)

_EVENTS = [f"{kind.__module__.removeprefix('sparkwal.')}.{kind.__name__}" for kind in event_kinds()]

# Notebooks are pages, as they ran last.
NOTEBOOKS = "notebooks/*.ipynb"

# Page of the reference → its introduction, and what it documents.
REFERENCE: dict[str, tuple[str, list[str]]] = {
    "Spark": (
        'The data source `format("weaselwal")`, configured by [options](../options.md).',
        ["register", "checkpoint", "Fork", "read_current"],
    ),
    "Log": (
        "A log without Spark: its end, its records, its rows.",
        [
            "Log",
            "log.HeadInfo",
            "format.header.CommitHeader",
            "format.header.LeaderHeader",
            "checkpoints.queries.QueryInfo",
            "reading.replaying.Replay",
            "reading.replaying.Entry",
            "reading.replaying.Stop",
            "lifecycle.table_replay.TableReplay",
            "lifecycle.table_replay.TableRows",
            "lifecycle.current_rows.Current",
        ],
    ),
    "Appender": (
        "The writer without Spark. [The journal](../journal.md) keeps what it accepted on a disk.",
        ["Appender", "Ticket", "AsyncAppender", "durable", "appender.salvage.Incident"],
    ),
    "Lifecycle": (
        "Compaction into a Delta table, retention, collection ([a log's life](../lifecycle.md)).",
        [
            "Lifecycle",
            "lifecycle.cycle.Run",
            "consumers",
            "lifecycle.consumers.consumer_list.ConsumerInfo",
            "forget_consumer",
        ],
    ),
    "Verification": (
        "Check a whole log, and repair a damaged record.",
        ["verify", "reading.verification.Report", "repair"],
    ),
    "Sequencers": (
        "Independent logs under one path ([concepts](../concepts.md#the-log)).",
        ["list_sequencers", "sequencer_for", "partition_by"],
    ),
    "Errors": (
        "[Operations](../operations.md#by-symptom) says what to do about each.",
        [
            "SparkWalError",
            "OptionError",
            "StoreUnavailableError",
            "FencedError",
            "OutcomeUnknownError",
            "DivergedCheckpointError",
            "RecomputedError",
            "InvalidLogError",
            "NewerFormatError",
            "CollectedError",
            "TableReadError",
            "BackPressureError",
            "CompactionError",
            "JournalError",
        ],
    ),
}

# The same for what programs use beside a log. Classes of `WITHOUT_MEMBERS` implement an interface.
TOOLS: dict[str, tuple[str, list[str]]] = {
    "Events": (
        "What the library reports ([all events](../events.md)).",
        ["events.subscribe", "events.Event", "events.PathEvent", *_EVENTS],
    ),
    "Metrics": (
        "Numbers for Prometheus ([metrics](../metrics.md)).",
        [
            "metrics.stream.watch_stream",
            "metrics.writers.watch_appender",
            "metrics.writers.watch_lifecycle",
            "metrics.prometheus.prometheus",
            "metrics.prometheus.new_meter",
            "metrics.prometheus.Prometheus",
        ],
    ),
    "Testing": (
        "For tests of programs that write or read a log.",
        [
            "testing.memory.MemoryStore",
            "testing.proxy.S3Proxy",
            "testing.faults.Fault",
            "testing.servers.start_ministack",
            "testing.servers.start_moto",
            "testing.servers.make_bucket",
            "testing.servers.log_options",
        ],
    ),
}
WITHOUT_MEMBERS = {"testing.memory.MemoryStore", "testing.proxy.S3Proxy"}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)")
# A code span that is a public name, but not in a heading or a link.
_NAMES = "|".join(sorted(sparkwal.__all__))
_SPAN = re.compile(
    rf"(^#.*|\[[^\]]*\]\([^)]*\))|`(?:sparkwal\.)?({_NAMES})(\([^`]*\))?`", re.MULTILINE
)


def site_name(path: str) -> str:
    """The name in the site of a file of the repository."""
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return MOVED.get(path) or path.removeprefix("sparkwal/docs/")


def page(path: str, text: str) -> str:
    """A page as the site has it: links point at the site's files, public names at the reference."""
    parts = []
    last = 0
    for block in _FENCED.finditer(text):
        parts += [_linked(path, text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, _linked(path, text[last:])])


def _linked(path: str, prose: str) -> str:
    folder = posixpath.dirname(site_name(path))

    def target(match: re.Match[str]) -> str:
        if "://" in match[1]:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({posixpath.relpath(site_name(file), folder)}"

    def name(match: re.Match[str]) -> str:
        # A word such as `durable` may be an event's name, too.
        if match[1] or not (match[2][0].isupper() or "sparkwal." in match[0]):
            return match[0]
        return f"[{match[0]}][sparkwal.{match[2]}]"

    return _SPAN.sub(name, _LINK.sub(target, prose))


def reference(title: str) -> str:
    """A page of the reference, which mkdocstrings fills from docstrings."""
    introduction, names = (REFERENCE | TOOLS)[title]
    return "\n\n".join([f"# {title}", introduction, *map(_documented, names)])


def _documented(name: str) -> str:
    options = "\n    options:\n      members: false" if name in WITHOUT_MEMBERS else ""
    return f"::: sparkwal.{name}{options}"


def notebook(text: str) -> str:
    """A notebook as Markdown: its texts, its code, and what that printed or drew last."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += filter(None, map(_output, cell["outputs"]))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = output["data"]
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="figure" src="data:image/png;base64,{image}">'
    if "text/html" in data:
        return re.sub(r"<style.*?</style>\s*", "", "".join(data["text/html"]), flags=re.DOTALL)
    return f"```text\n{''.join(data['text/plain'])}\n```"


def files(root: Path) -> Iterator[tuple[str, bytes]]:
    """The name in the site and the content of each file."""
    for path in PAGES:
        yield site_name(path), page(path, (root / path).read_text()).encode()
    for file in sorted(root.glob(NOTEBOOKS)):
        path = str(file.relative_to(root))
        yield site_name(path), page(path, notebook(file.read_text())).encode()
    for title in REFERENCE | TOOLS:
        yield f"reference/{title.lower()}.md", reference(title).encode()
    for pattern in COPIED:
        for file in sorted(root.glob(pattern)):
            if file.is_file():
                yield site_name(str(file.relative_to(root))), file.read_bytes()


def stage(root: Path) -> None:
    """Write the site's source files."""
    folder = root / STAGED
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files(root):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def build(root: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a tree."""
    stage(root)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIG]
    # The theme's advice about other tools is no warning about these pages.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)


def main() -> int:
    """Build this tree's site, and report what is wrong with it."""
    built = build(ROOT)
    lines = [line for line in built.stderr.splitlines() if not line.startswith("INFO")]
    print("\n".join(lines) if built.returncode else f"built {BUILT}/index.html", file=sys.stderr)
    return built.returncode


if __name__ == "__main__":
    sys.exit(main())
