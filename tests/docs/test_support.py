"""The support table and the reports that it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.options import spark_versions
from tests import capabilities
from tests.docs.support import Support, as_json, results, summary
from tests.docs.tables import results_of_sparks

REPORT = """<testsuites><testsuite>
<testcase classname="tests.spark.test_sink" name="test_a"><properties>
<property name="spark" value="4.1.4"/></properties></testcase>
<testcase classname="tests.spark.tables.test_merge" name="test_b"><properties>
<property name="spark" value="4.1.4"/></properties>{}</testcase>
<testcase classname="tests.spark.test_types" name="test_c"><properties>
<property name="spark" value="4.1.4"/></properties>
<skipped type="pytest.skip" message="Spark lacks READ_LIMITS"/></testcase>
<testcase classname="tests.spark.test_types" name="test_d"><properties>
<property name="spark" value="4.1.4"/></properties><skipped message="no browser"/></testcase>
<testcase classname="tests.format.test_keys" name="test_e"/>
<testcase classname="tests.spark.test_delta" name="test_f"><properties>
<property name="spark" value="4.1.4"/></properties></testcase>
</testsuite></testsuites>"""


def test_a_later_report_of_a_test_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "b.xml", tmp_path / "a.xml"
    first.write_text(REPORT.format('<failure message="no"/>'))
    by_version = summary([first])
    assert by_version["4.1"].failed == ["tests/spark/tables/test_merge.py::test_b"]
    assert by_version["4.1"].passed == {
        "tests/spark/tables/test_merge.py": 0,
        "tests/spark/test_sink.py": 1,
        "tests/spark/test_types.py": 0,
    }
    second.write_text(REPORT.format(""))
    by_version = summary([second, first])
    assert by_version["4.1"].failed == []
    assert by_version["4.1"].of_folder("tests/spark/tables") == {
        "tests/spark/tables/test_merge.py": 1
    }
    assert by_version["4.1"].version == "4.1.4" and by_version["4.1"].lacks == ["READ_LIMITS"]
    assert '"version": "4.1.4"' in as_json(by_version)


def test_the_table_names_what_was_not_run() -> None:
    merge = "tests/spark/tables/test_merge.py"
    sink = {"tests/spark/test_sink.py": 24}
    outcomes = {
        "4.0": Support("4.0.5", {**sink, merge: 2, "tests/spark/test_types.py": 11}),
        "4.1": Support("4.1.4", sink),
        "4.3": Support("4.3.0", sink),
    }
    assert results_of_sparks(outcomes).splitlines() == [
        "| tests that passed with Spark | 4.0.5 | 4.1.4 | 4.2 | 4.3.0 |",
        "|---|---|---|---|---|",
        "| `tests/spark` | 35 | 24; 1 file not run | not run | 24; 1 file not run |",
        "| `tests/spark/tables` | 2 | not run | not run | no Delta Lake |",
    ]


def test_no_test_failed_under_a_supported_spark() -> None:
    by_version = results()
    assert set(by_version) <= set(spark_versions.supported())
    assert [test for support in by_version.values() for test in support.failed] == []


@pytest.mark.parametrize("version", results())
def test_tests_were_skipped_for_what_the_spark_lacks(version: str) -> None:
    for name in results()[version].lacks:
        assert not capabilities.has(name, version), name
