"""The published wheel and source distribution, built as a user builds them."""

from __future__ import annotations

import configparser
import email
import os
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploying.building import NOT_CODE, build
from tests.deploying.environments import BASE, ROOT, make, run, see

pytestmark = pytest.mark.process


def tree() -> set[str]:
    """The files of the package, as a clone has them."""
    found = (path for path in (ROOT / "sparkwal").rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def sdist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(clone, tmp_path_factory.mktemp("sdist"), "sdist")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    (text,) = (data for name, data in contents(wheel).items() if name.endswith("/METADATA"))
    return email.message_from_bytes(text)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in contents(wheel) if ".dist-info/" not in name}
    # Spark imports top-level modules whose name begins with pyspark_: one package leaves the tree.
    assert names == {
        name.removeprefix("sparkwal/spark/") if "/pyspark_weaselwal/" in name else name
        for name in tree()
    }
    for each in ("py.typed", "PROTOCOL.md", "docs/options.md"):
        assert f"sparkwal/{each}" in names
    assert "sparkwal/spark/java/sparkwal-s3a.jar" in names
    assert "pyspark_weaselwal/__init__.py" in names


def test_the_sdist_holds_what_makes_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "from", filter="data")
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in files if name == "PKG-INFO" or ".egg-info/" in name}
    assert files - made == tree() | set(NOT_CODE)
    (folder,) = (tmp_path / "from").iterdir()
    assert contents(build(folder, tmp_path / "again", "wheel")) == contents(wheel)


def test_the_metadata_names_the_requirements_and_the_python_versions(wheel: Path) -> None:
    reported, config = metadata(wheel), configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert reported["Requires-Python"] == ">=3.11"
    known = {each.rpartition(" :: ")[2] for each in reported.get_all("Classifier", [])}
    assert {"3.11", "3.12", "3.13", "Typed"} <= known
    assert set(reported.get_all("Provides-Extra", [])) == set(config["options.extras_require"])
    always = {
        str(Requirement(text))
        for text in reported.get_all("Requires-Dist", [])
        if "extra ==" not in text
    }
    texts = config["options"]["install_requires"].split()
    assert always == {str(Requirement(text)) for text in texts}


def test_the_readme_renders_where_packages_are_published(wheel: Path, sdist: Path) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist).stdout
    assert said.count("PASSED") == 2


USE = """
import importlib.metadata, importlib.util, sys
import pyarrow as pa
import sparkwal
from sparkwal.spark import s3a

assert sparkwal.__file__.startswith(sys.prefix), sparkwal.__file__
assert sparkwal.__version__ == importlib.metadata.version("sparkwal")
assert s3a.jar().is_file()
assert importlib.util.find_spec("pyspark_weaselwal").origin.startswith(sys.prefix)
assert not importlib.util.find_spec("pyspark")
with sparkwal.Appender(sys.argv[1], pa.schema([("id", pa.int64())]), producer_id="p") as wal:
    wal.append([{"id": 1}, {"id": 2}])
assert sparkwal.Log(sys.argv[1]).scan().read_all()["id"].to_pylist() == [1, 2]
report = sparkwal.verify(sys.argv[1])
assert report.ok, report
print("rows", report.rows)
"""


def test_the_wheel_and_its_base_are_enough_to_write_read_and_verify(
    wheel: Path, tmp_path: Path
) -> None:
    python = make(tmp_path / "venv", wheel, sees_tests=False)
    see(python, *BASE)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run(python, "-c", USE, tmp_path / "log", env=bare, cwd=tmp_path)
    assert done.stdout == "rows 2\n"
    # A missing package is reported in one line.
    command = [tmp_path / "venv" / "bin" / "sparkwal", "status", tmp_path / "log"]
    reported = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert reported.returncode == 1 and ".[cli]" in reported.stderr
    assert len(reported.stderr.splitlines()) == 1
