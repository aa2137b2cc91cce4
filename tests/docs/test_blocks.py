"""Every block of code in the README and the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sparkwal
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY
from tests.docs.pages import PAGES, ROOT, Block, blocks

BASH = [block for page in PAGES for block in blocks(page, "bash")]


def check_pages_run(logs: str, folder: Path, **environment: str) -> None:
    source = str(Path(sparkwal.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_pages", logs, str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([source, str(ROOT)]),
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.removeprefix("ran ") for line in done.stdout.splitlines() if line[:4] == "ran "]
    assert ran == [page for page in PAGES if blocks(page, "python")]


# The pages speak of S3, where all of them run always.
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_python_blocks_run_on_local_disk(tmp_path: Path) -> None:
    check_pages_run(str(tmp_path / "logs"), tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_python_blocks_run_on_s3(tmp_path: Path, ministack_url: str, s3_bucket: str) -> None:
    check_pages_run(
        f"s3://{s3_bucket}",
        tmp_path,
        AWS_ENDPOINT_URL=ministack_url,
        AWS_REGION=REGION,
        AWS_ACCESS_KEY_ID=ACCESS_KEY,
        AWS_SECRET_ACCESS_KEY=SECRET_KEY,
    )


def test_every_block_has_a_language() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        fences = len(re.findall(r"^```", text, re.MULTILINE))
        assert fences == 2 * sum(
            len(blocks(page, each)) for each in ("python", "bash", "text", "yaml")
        )


def _found(pattern: str) -> dict[str, set[str]]:
    """The matches of each path in the pages: the pattern's first group is the path."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for language in ("python", "bash"):
            text = "\n".join(each.text for each in blocks(page, language)).replace("\\\n", " ")
            for path, about in re.findall(pattern, text, re.DOTALL):
                found.setdefault(path, set()).add(" ".join(about.split()))
    return found


def test_pages_share_no_path_with_another_schema() -> None:
    """A reader may run one page after another."""
    schemas = re.compile(r"^schema = pa\.schema\((.*?)\)$", re.MULTILINE | re.DOTALL)
    logs = re.compile(r"Appender\(\s*(f?\"[^\"]+\"), schema,")
    found: dict[str, set[str]] = {}
    for page in PAGES:
        schema = ""
        for block in blocks(page, "python"):
            events = [(m.start(), m) for m in schemas.finditer(block.text)]
            events += [(m.start(), m) for m in logs.finditer(block.text)]
            for _, match in sorted(events, key=lambda event: event[0]):
                if match.re is schemas:
                    schema = " ".join(match[1].split())
                else:
                    found.setdefault(match[1], set()).add(schema)
    assert found and {path: each for path, each in found.items() if len(each) > 1} == {}


def test_pages_compact_a_log_into_one_table() -> None:
    """How a log is compacted is fixed by its first run."""
    found = _found(r"jobs/compact\.py (\S+)( [^\s-]\S*(?: --(?:key|sequence-by) \S+)*)")
    assert {"s3://bucket/wal", "s3://bucket/orders"} <= {*found}
    assert {path: each for path, each in found.items() if len(each) > 1} == {}


def test_pages_have_journals_and_logs_in_folders_of_their_own() -> None:
    journals = {path for path in _found(r'journal="([^"]+)"()')}
    logs = {path for path in _found(r"(?:compact\.py|sparkwal \w+|--log) (\S+)()")}
    assert journals and not journals & logs


@pytest.mark.process
@pytest.mark.parametrize("block", BASH, ids=lambda block: f"{block.page}:{block.line}")
def test_the_bash_blocks_name_scripts_and_options_that_exist(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True)
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for place, word in enumerate(words):
            if not re.match(r"(jobs|tests|\.ci)/", word):
                continue
            assert (ROOT / word).exists(), line
            options = [w.partition("=")[0] for w in words[place:] if w.startswith("--")]
            if word.startswith("jobs/") and options and options != ["--help"]:
                script = word.removesuffix(".sh").removesuffix(".py") + ".py"
                commands = [w for w in words[place + 1 : place + 2] if w.isalpha()]
                shown = subprocess.run(
                    [sys.executable, str(ROOT / script), *commands, "--help"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                assert all(option in shown for option in options), line


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in anchors, target


def test_the_readme_is_short() -> None:
    assert 130 <= len((ROOT / "README.md").read_text().splitlines()) <= 175
