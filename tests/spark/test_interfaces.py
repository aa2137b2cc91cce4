"""The one module of differences between versions of Spark, against what each version offers. The
data in tests/spark/interfaces comes from each PySpark as pip installs it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import sys
from abc import ABC
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest

import sparkwal
from sparkwal.options import spark_versions
from sparkwal.options.spark_versions import has
from tests.spark.interfaces.collecting import HERE, collect, file_of, written
from tests.spark.test_delta import HALVES

# A worker that runs tests of tables needs a test to come after them: these take no time.
pytestmark = pytest.mark.xdist_group(HALVES[0])
PACKAGE = Path(sparkwal.__file__).parent
OFFERED = [json.loads(file.read_text()) for file in sorted(HERE.glob("spark-*.json"))]
VERSIONS = [each["version"] for each in OFFERED]


@pytest.fixture(params=OFFERED, ids=VERSIONS)
def offered(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_every_supported_spark_has_its_data() -> None:
    assert spark_versions.supported() == VERSIONS


def test_the_data_is_what_this_pyspark_offers() -> None:
    again = "python -m tests.spark.interfaces.collecting"
    assert file_of(pyspark.__version__).read_text() == written(collect()), again


def test_each_difference_has_the_right_version(offered: dict[str, Any]) -> None:
    version, modules = offered["version"], offered["modules"]
    sources, types = modules["datasource"], modules["types"]
    latest = sources["DataSourceStreamReader"]["methods"]["latestOffset"]
    found = {
        spark_versions.STREAM_ARROW_WRITER: "DataSourceStreamArrowWriter" in sources,
        spark_versions.CHECKPOINTING_PACKAGE: ".checkpointing." in offered["file_manager"],
        spark_versions.PIPELINES: offered["pipelines"],
        spark_versions.TIME: "TimeType" in types,
        spark_versions.SPATIAL: "GeometryType" in types,
        spark_versions.READ_LIMITS: latest == ["self", "start", "limit"],
        spark_versions.NAMED_SOURCES: offered["named_sources"],
        spark_versions.ARROW_TIMEZONE: "timezone" in modules["pandas/types"]["to_arrow_schema"],
    }
    for difference, is_there in found.items():
        assert has(difference, version) == is_there, difference
    assert spark_versions.checkpoint_file_manager(version) == offered["file_manager"]
    assert spark_versions.hadoop_connector("s3", version).rpartition(":")[2] == offered["hadoop"]


def test_the_source_and_the_sink_are_what_this_spark_asks_for(
    offered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces, sources = as_if(offered, monkeypatch)
    reader = interfaces.SparkStreamReader
    assert issubclass(reader, sources.DataSourceStreamReader)
    for name, parameters in offered["modules"]["datasource"]["DataSourceStreamReader"][
        "methods"
    ].items():
        own = inspect.getattr_static(reader, name)
        # pyspark.worker counts them to find out which Spark a source was written for.
        assert [*inspect.signature(own).parameters] == parameters, name
    writer = interfaces.DataSourceStreamArrowWriter
    assert issubclass(writer, sources.DataSourceStreamWriter)
    asked = "DataSourceStreamArrowWriter" if hasattr(sources, "DataSourceStreamArrowWriter") else ""
    assert issubclass(writer, getattr(sources, asked or "DataSourceArrowWriter"))
    limits = sys.modules.get("pyspark.sql.streaming.datasource")
    takes_part = limits is not None and issubclass(reader, limits.SupportsTriggerAvailableNow)
    assert takes_part == has(spark_versions.READ_LIMITS, offered["version"])
    assert interfaces.to_arrow_schema("schema") == "arrow"


def test_no_other_module_asks_for_a_version() -> None:
    """A version of Spark is compared in `options/spark_versions.py` alone."""
    found = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "spark_versions.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        and "version" in ast.unparse(node)
        and ("spark" in ast.unparse(node) or "HERE" in ast.unparse(node))
    ]
    assert found == []


def as_if(offered: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Import `sparkwal.spark.interfaces` beside a PySpark with this interface; also returns the
    `datasource` of that PySpark."""
    for name in [name for name in sys.modules if name.startswith("pyspark")]:
        monkeypatch.delitem(sys.modules, name)
    modules = {
        name: module(f"pyspark.{name}".rstrip("."), monkeypatch)
        for name in ("", "sql", "sql.pandas", "sql.streaming")
    }
    vars(modules[""])["__version__"] = offered["version"]
    for name, found in offered["modules"].items():
        made = module(f"pyspark.sql.{name.replace('/', '.')}", monkeypatch)
        for each, content in found.items():
            vars(made)[each] = (
                function(each, content, "return 'arrow'")
                if isinstance(content, list)
                else a_class(each, content, vars(made))
            )
    vars(modules["sql.pandas"])["types"] = sys.modules["pyspark.sql.pandas.types"]
    spec = importlib.util.spec_from_file_location("interfaces", PACKAGE / "spark" / "interfaces.py")
    assert spec is not None and spec.loader is not None
    interfaces = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(interfaces)
    return interfaces, sys.modules["pyspark.sql.datasource"]


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(name)
    made.__path__ = []
    monkeypatch.setitem(sys.modules, name, made)
    return made


def a_class(name: str, content: dict[str, Any], known: dict[str, Any]) -> type:
    bases = tuple(known[base] for base in content["bases"] if isinstance(known.get(base), type))
    methods = {
        each: function(each, parameters, "raise NotImplementedError")
        for each, parameters in content["methods"].items()
    }
    return type(name, bases or (ABC,), methods)


def function(name: str, parameters: list[str], body: str) -> Any:
    made: dict[str, Any] = {}
    exec(f"def {name}({', '.join(f'{each}=None' for each in parameters)}): {body}", made)
    return made[name]
