"""A log as the sink of a declarative pipeline, as the documentation shows it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import sparkwal
from sparkwal.testing.servers import log_options
from tests.deploying.environments import reaches, run
from tests.docs.pages import blocks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.capability("PIPELINES"),
]

PAGE = "sparkwal/docs/deploying.md"


@pytest.mark.usefixtures("connect_port")
def test_a_pipeline_appends_to_a_log_and_continues(
    tmp_path: Path, ministack_url: str, s3_bucket: str
) -> None:
    pytest.importorskip("yaml", reason="pipelines need pyspark[pipelines]")
    texts = [
        block.text.replace("/data", str(tmp_path)).replace("s3://bucket", f"s3://{s3_bucket}")
        for block in blocks(PAGE, "text")
    ]
    (flow,) = [text for text in texts if "create_sink" in text]
    (spec,) = [text for text in texts if "libraries:" in text]
    project = tmp_path / "project"
    for folder in (project / "flows", tmp_path / "in", tmp_path / "site"):
        folder.mkdir(parents=True)
    (project / "flows" / "orders.py").write_text(flow)
    (project / "spark-pipeline.yml").write_text(spec)
    # As installed: Spark finds the format by the name of a module at the top.
    source = Path(sparkwal.__file__).parent
    found = tmp_path / "site" / "pyspark_weaselwal"
    if not (source.parent / found.name).exists():
        found.symlink_to(source / "spark" / found.name)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSP"))
    } | reaches(ministack_url)
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(found.parent), str(source.parent)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    command = [Path(sys.executable).parent / "spark-pipelines", "run"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    for first in (0, 5):
        lines = [json.dumps({"id": n}) for n in range(first, first + 5)]
        (tmp_path / "in" / f"{first}.json").write_text("\n".join(lines))
        run(*command, env=environment, cwd=project)
    log, options = f"s3://{s3_bucket}/wal", log_options(ministack_url)
    assert sparkwal.Log(log, **options).scan().read_all()["id"].to_pylist() == [*range(10)]
    assert sparkwal.verify(log, **options).ok
