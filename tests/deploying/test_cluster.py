"""Executors that do not have sparkwal get it from spark-submit, on a real standalone cluster.

Master, workers and drivers have nothing of the environment that the tests run in.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import sparkwal
from sparkwal.testing.servers import log_options
from tests.clusters import HOME, standalone
from tests.deploying.environments import BASE, ROOT, clean, make, pip, run, see

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.slow]

JOB = ROOT / "jobs" / "ingest.py"
INGEST = (
    *("--format", "json", "--source", "in", "--schema", "id BIGINT", "--name", "orders"),
    *("--log-option", "inlineThreshold=0", "--repartition", "4", "--max-files-per-trigger", "1"),
)
ROWS = 2000


@dataclass(frozen=True)
class Cluster:
    """A cluster, an S3 server, and a folder to submit from."""

    master: str
    folder: Path
    log: str
    options: dict[str, str]

    def submit(
        self,
        *arguments: object,
        job: Path = JOB,
        given: tuple[object, ...] = INGEST,
        **environment: object,
    ) -> subprocess.CompletedProcess[str]:
        """spark-submit, the arguments before the job's."""
        options = self.folder / "options.conf"
        options.write_text("".join(f"{k} = {v}\n" for k, v in self.options.items()))
        command = [HOME / "bin" / "spark-submit", "--master", self.master, *arguments]
        command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
        command += [job, "--log", self.log, "--options-file", options, *given]
        return subprocess.run(
            [*map(str, command)],
            cwd=self.folder,
            env=clean(HOME=self.folder, **environment),
            capture_output=True,
            text=True,
        )

    def prove(self) -> None:
        """Every row is in the log once, written by executors of the cluster."""
        report = sparkwal.verify(self.log, **self.options)
        assert report.ok and report.orphans == [] and report.rows == ROWS, report
        table = sparkwal.Log(self.log, **self.options).scan().read_all()
        assert sorted(table["id"].to_pylist()) == [*range(ROWS)]
        assert [*self.folder.parent.glob("work?/app-*/*/stderr")]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, clean()) as url:
        yield url, folder


@pytest.fixture
def cluster(
    master: tuple[str, Path], tmp_path: Path, ministack_url: str, s3_bucket: str
) -> Cluster:
    url, folder = master
    here = folder / s3_bucket
    (here / "in").mkdir(parents=True)
    for file in range(2):
        ids = range(file * ROWS // 2, (file + 1) * ROWS // 2)
        (here / "in" / f"{file}.json").write_text(
            "".join(json.dumps({"id": n}) + "\n" for n in ids)
        )
    return Cluster(url, here, f"s3://{s3_bucket}/wal", log_options(ministack_url))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that sparkwal and the jobs need, and without sparkwal."""
    python = make(tmp_path_factory.mktemp("bare") / "venv", sees_tests=False)
    see(python, *BASE, "click", "rich", "markdown_it", "mdurl", "pygments")
    return python


@pytest.fixture
def zipped(cluster: Cluster, wheel: Path) -> Path:
    return Path(shutil.copy(wheel, cluster.folder / "sparkwal.zip"))


def test_an_archive_brings_all_to_executors_that_have_nothing(
    cluster: Cluster, wheel: Path, tmp_path: Path
) -> None:
    env = make(tmp_path / "env", sees_tests=False).parents[1]
    pip(env / "bin" / "python", "install", f"{wheel}[cli]")
    archive = cluster.folder / "env.tar.gz"
    run(sys.executable, "-m", "venv_pack", "-p", env, "-o", archive)
    shutil.rmtree(env)
    # The driver's own Python workers start in its working folder.
    with tarfile.open(archive) as packed:
        packed.extractall(cluster.folder / "env", filter="fully_trusted")
    done = cluster.submit("--archives", f"{archive}#env", PYSPARK_PYTHON="./env/bin/python")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cluster.prove()


def test_a_zip_is_enough_where_pyarrow_and_botocore_are(
    cluster: Cluster, python: Path, zipped: Path
) -> None:
    done = cluster.submit("--py-files", zipped, PYSPARK_PYTHON=python)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cluster.prove()
    read = cluster.submit(
        "--py-files",
        zipped,
        job=ROOT / "jobs" / "replay.py",
        given=("--format", "noop"),
        PYSPARK_PYTHON=python,
    )
    assert read.returncode == 0, read.stdout[-3000:] + read.stderr[-3000:]
    assert "2,000 rows of " in read.stdout


def test_executors_without_sparkwal_give_a_one_line_error(
    cluster: Cluster, python: Path, wheel: Path
) -> None:
    archive = cluster.folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python.parents[1], ".")
    # spark-submit gets fewer files than the driver has.
    shutil.copytree(python.parents[1], cluster.folder / "env", symlinks=True)
    pip(cluster.folder / "env" / "bin" / "python", "install", "--no-deps", wheel)
    done = cluster.submit("--archives", f"{archive}#env", PYSPARK_PYTHON="./env/bin/python")
    assert done.returncode == 1, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Error: ")]
    assert "sparkwal is missing in this executor's Python" in line, line


def test_a_job_names_the_files_it_lacks(cluster: Cluster, python: Path, zipped: Path) -> None:
    bare = cluster.submit(PYSPARK_PYTHON=python)
    assert bare.returncode == 1
    assert "sparkwal is not installed for this Python. Give it to spark-submit" in bare.stdout
    job = Path(shutil.copy(JOB, cluster.folder))
    alone = cluster.submit("--py-files", zipped, job=job, PYSPARK_PYTHON=python)
    assert alone.returncode == 1
    assert "jobs/support cannot be imported: keep that folder beside this file" in alone.stdout
