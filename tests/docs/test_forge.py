"""The files for a forge and for git: workflow, forms and hooks."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwal.options import spark_versions
from tests.docs.pages import ROOT

FORGE = ROOT / ".github"
FILES = [*sorted(path for path in FORGE.rglob("*") if path.is_file())]
FORMS = ("bug.yml", "feature.yml")


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_workflow_runs_all_checks_on_each_supported_python() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    supported = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])
    job = parsed(FORGE / "workflows/checks.yml")["jobs"]["checks"]
    assert job["strategy"]["matrix"]["python"] == supported
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]


def test_the_workflow_runs_the_tests_under_each_spark_of_the_support_table() -> None:
    job = parsed(FORGE / "workflows/checks.yml")["jobs"]["sparks"]
    assert job["strategy"]["matrix"]["spark"] == spark_versions.supported()
    assert job["steps"][-1]["run"] == "bash tests/versions.sh spark${{ matrix.spark }}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_fork_reaches_all_that_is_named(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("name", FORMS)
def test_a_form_asks_for_texts_that_have_names(name: str) -> None:
    form = parsed(FORGE / "ISSUE_TEMPLATE" / name)
    assert form["name"] and form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])


def test_a_bug_comes_with_what_doctor_prints() -> None:
    body = parsed(FORGE / "ISSUE_TEMPLATE/bug.yml")["body"]
    (doctor,) = (field for field in body if "sparkwal doctor" in field["attributes"]["label"])
    assert doctor["validations"]["required"]


def test_a_commit_runs_ruff_and_mypy_of_the_tests_environment() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert all(entry.startswith(".venv/bin/python -m ") for entry in entries)
    assert [entry.split()[2] for entry in entries] == ["ruff", "ruff", "mypy"]
