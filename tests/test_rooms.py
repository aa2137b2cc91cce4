"""The architecture: which room knows which, and what none of them may know."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "sparkwal").rglob("*.py"))
LONGEST = 800
LONGEST_FUNCTION = 70
MOST_PARAMETERS = 7
# These have more parameters. The last two are those of an option each.
WIDE_FUNCTIONS = {
    "sparkwal/lifecycle/coordinator.py:__init__",
    "sparkwal/spark/delta_lifecycle.py:__init__",
}
# jobs/ and notebooks/ are rooms beside those of the library.
ROOMS_OUTSIDE = ("jobs", "notebooks")
MOST_ROOMS = 20
MOST_FLOORS = 9

# Each room, from the bottom up, and the rooms that it may import. A module at the top level
# is a room too.
MAY_KNOW = {
    "errors": set(),
    "events": set(),
    "format": {"errors"},
    "store": {"errors", "events", "format"},
    "options": {"errors", "format", "store"},
    "protocol": {"errors", "events", "format", "store"},
    "reading": {"errors", "events", "format", "options", "protocol", "store"},
    "sql": {"errors", "format", "protocol", "reading", "store"},
    "log": {
        "checkpoints",
        "errors",
        "format",
        "lifecycle",
        "options",
        "protocol",
        "reading",
        "sql",
        "store",
    },
    "journal": {"errors", "events", "format", "store"},
    "appender": {
        "errors",
        "events",
        "format",
        "journal",
        "options",
        "protocol",
        "reading",
        "store",
    },
    "checkpoints": {"errors", "events", "format", "options", "protocol", "store"},
    "lifecycle": {"errors", "events", "format", "options", "protocol", "reading", "store"},
    "metrics": {
        "appender",
        "errors",
        "events",
        "format",
        "lifecycle",
        "options",
        "protocol",
        "reading",
        "store",
    },
    "spark": {
        "checkpoints",
        "errors",
        "events",
        "format",
        "lifecycle",
        "options",
        "protocol",
        "reading",
        "store",
    },
    "testing": {"journal", "store"},
    # The command looks at everything. The jobs share its options, output and exit codes.
    "cli": {
        "appender",
        "checkpoints",
        "errors",
        "events",
        "format",
        "lifecycle",
        "log",
        "metrics",
        "options",
        "protocol",
        "reading",
        "spark",
        "sql",
        "store",
    },
    "__main__": {"cli"},
    "__init__": {
        "appender",
        "checkpoints",
        "errors",
        "lifecycle",
        "log",
        "options",
        "reading",
        "spark",
    },
}

# The modules that a room may import of another room.
ONLY = {
    ("store", "format"): {"format.keys"},
    # Plain values; `options.open` alone opens a store.
    ("options", "store"): {"store.base", "store.config", "store.open", "store.path"},
    # The interface and what is built on nothing else.
    ("protocol", "store"): {"store.base", "store.parallel"},
    ("testing", "store"): {"store.base", "store.open", "store.s3_client"},
    ("testing", "journal"): {"journal.storage"},
    # The rule for a folder of this user alone, and the start of a thread.
    ("journal", "store"): {"store.local_files", "store.threads"},
}

# The one module of `lifecycle` that chooses the format of a table, and the folder of each format.
CHOOSES_FORMAT = "lifecycle.opening"
FORMATS = ("lifecycle.delta", "lifecycle.iceberg")
# Words of a format, and the files that may have them outside of its folder.
WORDS_OF_FORMATS: dict[str, set[str]] = {
    "_delta_log": {"options/open.py", "spark/delta_files.py"},
    "RESTORE": set(),
}

# Which rooms may know a library at all, lazily or for its types included.
LIBRARIES = {
    "pyspark": {"metrics", "spark", "__init__"},
    "py4j": {"spark"},
    "botocore": {"store", "testing"},
    "urllib3": {"store", "testing"},
    "pandas": {"appender", "format", "lifecycle", "log", "spark"},
    "deltalake": {"lifecycle"},
    "pyiceberg": {"lifecycle"},
    "azure": {"store"},
    "google": {"store"},
    "duckdb": {"sql"},
    "matplotlib": {"cli"},
    "click": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"metrics"},
}
# The base installation.
REQUIRED = {"pyarrow", "botocore", "isal", "msgspec", "urllib3"}


class Import(NamedTuple):
    """One import; `module` without the leading "sparkwal.", or a library's top name."""

    source: str
    module: str
    ours: bool
    eager: bool
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.module}"


def imports(tree: ast.AST, source: str) -> Iterator[Import]:
    def walk(node: ast.AST, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
        for child in ast.iter_child_nodes(node):
            lazily = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield child, eager
            yield from walk(child, eager and not lazily and not typing)

    for node, eager in walk(tree, True):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "sparkwal":
                yield Import(source, _module(rest), True, eager, node.lineno)
            else:
                yield Import(source, top, False, eager, node.lineno)


def _module(name: str) -> str:
    """The module of `name`: "store.base" for "store.base.Store"."""
    path = ROOT / "sparkwal" / name.replace(".", "/")
    if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
        return name
    return _module(name.rpartition(".")[0]) if name else ""


def name_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT / "sparkwal").with_suffix("").parts)
    return name.removesuffix(".__init__")


def room(module: str) -> str:
    return module.partition(".")[0]


@cache
def every() -> list[Import]:
    """The imports of all modules; parsed when a test asks, not when its file is collected."""
    return [x for path in SOURCES for x in imports(ast.parse(path.read_text()), name_of(path))]


def test_each_room_knows_only_the_rooms_below_it() -> None:
    wrong = [
        str(x)
        for x in every()
        if x.ours and room(x.module) != room(x.source)
        if room(x.module) not in MAY_KNOW[room(x.source)]
        or x.module not in ONLY.get((room(x.source), room(x.module)), {x.module})
    ]
    assert wrong == []


def test_the_rooms_stand_one_above_the_other() -> None:
    assert list(TopologicalSorter(MAY_KNOW).static_order())
    assert {room(name_of(path)) for path in SOURCES} == set(MAY_KNOW)


def test_a_reader_of_the_code_meets_few_rooms_on_few_floors() -> None:
    order = TopologicalSorter(MAY_KNOW)
    order.prepare()
    floors = 0
    while order.is_active():
        floors += 1
        order.done(*order.get_ready())
    outside = [name for name in ROOMS_OUTSIDE if any((ROOT / name).rglob("*.py"))]
    assert len(MAY_KNOW) + len(outside) <= MOST_ROOMS
    # The jobs stand above the command.
    assert floors <= MOST_FLOORS


def test_only_a_room_bears_its_name() -> None:
    """`lifecycle` is a room, and so no module elsewhere is called that."""
    names = {room(name_of(path)) for path in SOURCES} - {"__init__"}
    # A module of `cli` bears the name of its command, one of `options` that of what it sets.
    wrong = [
        name
        for name in map(name_of, SOURCES)
        if "." in name and room(name) not in ("cli", "options")
        if name.rpartition(".")[2] in names - {room(name)}
    ]
    assert wrong == []


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {name_of(path) for path in SOURCES}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for x in every():
        if x.ours and x.module in names and x.module != x.source:
            graph[x.source].add(x.module)
    try:
        assert list(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        pytest.fail(" imports ".join(circle.args[1]))


def test_a_library_is_known_only_where_it_belongs() -> None:
    wrong = [
        str(x)
        for x in every()
        if not x.ours and x.module in LIBRARIES and room(x.source) not in LIBRARIES[x.module]
    ]
    assert wrong == []


def is_of_format(module: str) -> bool:
    return module.startswith(tuple(f"{name}." for name in FORMATS))


def test_a_table_format_is_known_in_its_folder() -> None:
    """Spark writes tables, so it has files of each format of its own."""
    wrong = [
        str(x)
        for x in every()
        if is_of_format(x.module) and not is_of_format(x.source)
        if room(x.source) != "spark" and x.source != CHOOSES_FORMAT
    ]
    assert wrong == []
    for word, allowed in WORDS_OF_FORMATS.items():
        having = {path for path in SOURCES if re.search(rf"\b{word}\b", path.read_text())}
        outside = {path for path in having if not is_of_format(name_of(path))}
        assert {str(path.relative_to(ROOT / "sparkwal")) for path in outside} == allowed


def test_the_page_about_a_new_table_format_names_what_there_is() -> None:
    page = (ROOT / "sparkwal/docs/contributing.md").read_text()
    section = page.partition("## A new table format\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([^`]+)`", section))
    places = {name for name in named if "/" in name}
    assert [x for x in places if not any((ROOT / y / x).exists() for y in (".", "sparkwal"))] == []
    files = [ROOT / "sparkwal/lifecycle/table.py", ROOT / "tests/test_rooms.py"]
    files += [place for x in places for y in (".", "sparkwal") if (place := ROOT / y / x).is_file()]
    code = "\n".join(file.read_text() for file in files)
    assert [name for name in named - places if not re.search(rf"\b{name}\b", code)] == []
    rows = re.findall(r"^\|[^|]*\| `(\S+\.py)` \| (.*) \|$", section, re.MULTILINE)
    assert len(rows) == 7
    for file, functions in rows:
        text = (ROOT / "sparkwal" / file).read_text()
        for name in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"def {name}\(|self\.{name}\b.* = ", text), (file, name)


def test_the_base_installation_names_all_that_is_imported_without_spark() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    named = {x.split(">")[0] for x in config["options"]["install_requires"].split()}
    assert named == REQUIRED
    known = set(sys.stdlib_module_names) | REQUIRED | {"mypy_boto3_s3"}
    wrong = [
        str(x)
        for x in every()
        if not x.ours and x.module not in known
        # Modules with rows or sessions have them.
        if x.module not in LIBRARIES
    ]
    assert wrong == []


def test_every_package_is_installed() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    named = set(config["options"]["packages"].split()) - {"pyspark_weaselwal"}
    there = {path.parent for path in SOURCES if path.parent.name != "pyspark_weaselwal"}
    assert named == {".".join(path.relative_to(ROOT).parts) for path in there}


def test_no_module_is_too_long_to_read() -> None:
    folders = ("jobs", "tests/benchmarks", "tests/faults")
    paths = [*SOURCES, *(path for each in folders for path in sorted((ROOT / each).rglob("*.py")))]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_functions_are_short_and_have_few_parameters() -> None:
    long, wide = set(), set()
    for path in [*SOURCES, *sorted((ROOT / "jobs").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = f"{path.relative_to(ROOT)}:{node.name}"
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                long.add(name)
            if len(node.args.args + node.args.kwonlyargs) > MOST_PARAMETERS:
                wide.add(name)
    assert long == set()
    assert wide == WIDE_FUNCTIONS


def private_names(tree: ast.AST) -> set[str]:
    """The names with one underscore that the code defines or sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_only_the_modules_for_it_read_private_names_of_the_library() -> None:
    of_library = set().union(*(private_names(ast.parse(path.read_text())) for path in SOURCES))
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = of_library - private_names(tree)
        read = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls")
        }
        # os._exit is Python's.
        if read & names - {"_exit"} and path.name not in ("inside.py", "stand.py"):
            found.add(str(path.relative_to(ROOT / "tests")))
    assert found == set()


def test_ruff_alone_lays_out_the_code() -> None:
    """No line is kept out of ruff's hands, and none is longer than its limit."""
    marks = ("fmt" + ": skip", "fmt" + ": off", "noqa" + ": E501")
    paths = [
        path
        for folder in ("sparkwal", "jobs", "tests", "notebooks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if any(mark in path.read_text() for mark in marks)
    ]
    assert paths == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("protocol.plan", "from sparkwal.options import writing", "room"),
        ("protocol.plan", "from sparkwal.store.s3 import S3Store", "part"),
        ("format.keys", "import sparkwal.store.base", "room"),
        ("reading.rows", "def f():\n    from pyspark.sql import Row", "library"),
        ("protocol.task", "if TYPE_CHECKING:\n    import botocore.session", "library"),
    ],
)
def test_violations_of_the_rules_are_found(module: str, line: str, wrong: str) -> None:
    (found,) = imports(ast.parse(line), module)
    known = room(found.module) in MAY_KNOW[room(module)]
    part = found.module in ONLY.get((room(module), room(found.module)), {found.module})
    library = found.ours or room(module) in LIBRARIES[found.module]
    assert {"room": known, "part": part, "library": library}[wrong] is False
