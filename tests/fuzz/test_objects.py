"""Readers of foreign bytes: every seed, every input that failed once, and others made of these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import KINDS, earlier_failures
from tests.fuzz.vocabulary import MUTATIONS

ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("SPARKWAL_FUZZ_RUNS", "5000"))
MUTATED = 200
EXAMPLES = int(os.environ.get("SPARKWAL_FUZZ_EXAMPLES", "300"))


def check_read(kind: str, data: bytes) -> None:
    """Any error but those of sparkwal fails."""
    KINDS[kind].read(data)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_earlier_failures_raise_no_other_error(kind: str) -> None:
    for seed in KINDS[kind].seeds():
        check_read(kind, seed)
    for file in earlier_failures(kind):
        check_read(kind, file.read_bytes())


@pytest.mark.parametrize("kind", MUTATIONS)
def test_mutations_of_seeds_lead_to_no_other_error(kind: str) -> None:
    random = Random(1)
    seeds = KINDS[kind].seeds()
    for _ in range(MUTATED):
        data = random.choice(seeds)
        for _ in range(random.randint(1, 3)):
            data = MUTATIONS[kind](data, random)
        check_read(kind, data)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_bytes_lead_to_another_error(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="no atheris for this Python or platform")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz_objects",
            kind,
            f"-runs={RUNS}",
            "-seed=1",
            "-timeout=20",
            f"-artifact_prefix={tmp_path}/",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


# Values that no field expects.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([-1, 0, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**400, "0" * 20, ""])
    | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def documents() -> Iterator[tuple[str, Any]]:
    """The JSON documents among the seeds, by their kinds."""
    for kind, target in KINDS.items():
        for seed in target.seeds():
            for line in seed.splitlines():
                try:
                    document = json.loads(line)
                except ValueError:
                    continue
                if isinstance(document, dict):
                    yield kind, (document, seed, line)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Each (holder, key) in a document."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        yield document, key
        if isinstance(value, (dict, list)):
            yield from places(value)


CASES = [*documents()]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)), ids=[kind for kind, _ in CASES])
@settings(max_examples=EXAMPLES, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_no_value_in_a_document_leads_to_another_error(number: int, data: st.DataObject) -> None:
    kind, (document, seed, line) = CASES[number]
    forged = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from([*places(forged)] or [(forged, "x")]))
        if data.draw(st.booleans()) or isinstance(holder, list):
            holder[key] = data.draw(VALUES)
        else:
            holder.pop(key, None)
    text = json.dumps(forged, ensure_ascii=data.draw(st.booleans()))
    check_read(kind, seed.replace(line, text.encode(errors="surrogatepass")))
