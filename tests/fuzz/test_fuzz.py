"""A short fuzzing run inside the tests; a longer one is the same command with more runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

pytest.importorskip("atheris", reason="no atheris for this Python or platform")
ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("SPARKWAL_FUZZ_RUNS", "30000"))


def test_no_bytes_crash_the_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.fuzz.fuzz_record", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    corpus = tmp_path / "corpus"
    corpus.mkdir()
    assert run("--seeds", str(corpus)).returncode == 0
    found = run(
        f"-runs={RUNS}", "-seed=1", "-timeout=20", f"-artifact_prefix={tmp_path}/", str(corpus)
    )
    assert found.returncode == 0, found.stderr[-3000:]
    done = re.search(r"Done (\d+) runs", found.stderr)
    assert done and int(done[1]) >= RUNS
    with capsys.disabled():
        print(f"\n  fuzzed {done[1]} inputs, seed 1")
