"""The interface of PySpark for a data source in Python as data, a file for each version.

python -m tests.spark.interfaces.collecting     writes that of the PySpark of this Python
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Modules of pyspark.sql, and which of their classes and functions a data source meets.
MODULES = {
    "datasource": r"DataSource\w*|InputPartition|WriterCommitMessage",
    "streaming/datasource": r"Read\w+|Supports\w+",
    "pandas/types": r"to_arrow_schema",
    "types": r"\w+Type|StructField",
}
FILE_MANAGER = "FileSystemBasedCheckpointFileManager"


def collect() -> dict[str, Any]:
    """The interface of the PySpark in this Python."""
    import pyspark

    root = Path(pyspark.__file__).parent
    jars = root / "jars"
    (hadoop,) = jars.glob("hadoop-client-api-*.jar")
    (sql,) = jars.glob("spark-sql_*.jar")
    readers = root / "sql" / "streaming" / "readwriter.py"
    return {
        "version": pyspark.__version__,
        "hadoop": hadoop.stem.removeprefix("hadoop-client-api-"),
        "pipelines": (root / "pipelines").is_dir(),
        "named_sources": "name"
        in members(readers, "DataStreamReader")["DataStreamReader"]["methods"],
        "file_manager": file_manager(sql),
        "modules": {
            name: members((root / "sql" / f"{name}.py"), pattern)
            for name, pattern in MODULES.items()
            if (root / "sql" / f"{name}.py").exists()
        },
    }


def file_manager(jar: Path) -> str:
    """The full name of its class."""
    with zipfile.ZipFile(jar) as archive:
        (found,) = (name for name in archive.namelist() if name.endswith(f"/{FILE_MANAGER}.class"))
    return found.removesuffix(".class").replace("/", ".")


def members(source: Path, pattern: str) -> dict[str, Any]:
    """The classes of a module with their bases and methods, and its functions."""
    found: dict[str, Any] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(pattern, node.name):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found[node.name] = {
                "bases": [ast.unparse(base) for base in node.bases],
                "methods": {each.name: parameters(each) for each in methods},
            }
        elif isinstance(node, ast.FunctionDef) and re.fullmatch(pattern, node.name):
            found[node.name] = parameters(node)
    return found


def parameters(function: ast.FunctionDef) -> list[str]:
    """Their names."""
    every = function.args
    return [each.arg for each in (*every.posonlyargs, *every.args, *every.kwonlyargs)]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def file_of(version: str) -> Path:
    return HERE / f"spark-{minor(version)}.json"


def written(found: dict[str, Any]) -> str:
    """The text of the file. One file serves all versions of a minor version."""
    return json.dumps({**found, "version": minor(found["version"])}, indent=1) + "\n"


if __name__ == "__main__":
    here = collect()
    file_of(here["version"]).write_text(written(here))
