"""The benchmark runs, counts the requests of the protocol, and prints the comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.s3]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "benchmarks", *map(str, arguments)]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "jobs")])
    own = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=own)


@pytest.mark.slow
def test_the_benchmark_measures_its_peers_side_by_side(tmp_path: Path) -> None:
    done = run(
        "sinks",
        "--quick",
        "--repeats",
        1,
        "--latency",
        0,
        "--output",
        tmp_path,
        "--only",
        "microbatch,recovery,bulk-write,bulk-read",
        "--peers",
        "noop,weaselwal,inlined",
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmark.json").read_text())
    assert results["machine"]["cpus"] and results["machine"]["spark"]
    [found] = results["microbatch"]
    assert found["latency_ms"] == 0 and found["put_ms"]["p50"] > 0
    peers = found["peers"]
    requests = {name: peer["requests"] for name, peer in peers.items()}
    assert requests == {"noop": {}, "weaselwal": {"PUT": 3.0}, "inlined": {"PUT": 1.0}}
    assert all(peer["microbatches"] >= 2 for peer in peers.values())
    assert all(0 < x["add_batch_p50_ms"] <= x["add_batch_p99_ms"] for x in peers.values())
    # $0.005 for 1,000 PUTs.
    assert [peers[x]["dollars_per_million"] for x in peers] == [0, 15.0, 5.0]
    for part in ("bulk-write", "bulk-read"):
        [found] = results[part]
        assert list(found["peers"]) == ["noop", "weaselwal"]
        assert all(len(peer["runs"]) == 1 for peer in found["peers"].values())
    logs = results["recovery"]["logs"]
    assert [log["commits"] for log in logs] == [10, 2000]
    assert all(log["requests"] == ["1 GET, 1 LIST, 1 PUT"] for log in logs)
    assert "sparkwal: requests" in done.stdout
    assert "<svg" in (tmp_path / "benchmark.svg").read_text()


@pytest.mark.slow
def test_a_whole_trigger_is_one_put(tmp_path: Path) -> None:
    output = tmp_path / "triggers.json"
    done = run(
        "triggers",
        "--latency",
        0,
        "--repeats",
        1,
        "--microbatches",
        8,
        "--output",
        output,
        "--rows",
        "sparkwal,sparkwal-objects,noop",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["rows"]
    requests = {name: found["requests"] for name, found in rows.items()}
    assert requests == {"sparkwal": {"PUT": 1.0}, "sparkwal-objects": {"PUT": 3.0}, "noop": {}}
    assert all(0 < found["add_batch_ms"] < found["trigger_ms"] for found in rows.values())


@pytest.mark.slow
def test_a_peer_at_its_best_makes_half_the_requests(tmp_path: Path) -> None:
    output = tmp_path / "triggers.json"
    done = run(
        "triggers",
        "--latency",
        0,
        "--repeats",
        1,
        "--microbatches",
        8,
        "--output",
        output,
        "--rows",
        "parquet,parquet-best",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["rows"]
    each = {name: found["requests_per_microbatch"] for name, found in rows.items()}
    assert each["parquet-best"] < 0.6 * each["parquet"]
    assert "| Spark's parquet sink, at its best |" in done.stdout


@pytest.mark.slow
def test_scale_counts_the_protocols_own_requests(tmp_path: Path) -> None:
    output = tmp_path / "scale.json"
    done = run(
        "scale",
        "--partitions",
        1200,
        "--sequencers",
        "1,10",
        "--seconds",
        2,
        "--output",
        output,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert [(x["sequencers"], x["inlined"], x["window"]) for x in found] == [
        (1, False, 10_000),
        (10, False, 1000),
        (1, True, 10_000),
        (10, True, 1000),
    ]
    # P+1 for each sequencer; inlined 1.
    assert [x["requests_per_second"] for x in found] == [
        {"PUT": 1201.0},
        {"PUT": 1210.0},
        {"PUT": 1.0},
        {"PUT": 10.0},
    ]
    for one in found:
        assert one["requests_of_a_restart"] == {"GET": 1.0, "LIST": 1.0, "PUT": 1.0}
    assert found[0]["dollars_per_day"] == round(1201 * 86_400 * 0.005 / 1000, 2)


@pytest.mark.slow
def test_the_benchmark_measures_a_journal_and_its_disk(tmp_path: Path) -> None:
    output = tmp_path / "journal.json"
    done = run(
        "journal",
        "--samples",
        10,
        "--megabytes",
        16,
        "--repeats",
        1,
        "--memory",
        "2,4",
        "--sizes",
        "1024",
        "--outage-seconds",
        2,
        "--outage-rate",
        100,
        "--folder",
        tmp_path,
        "--output",
        output,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert [found["latency"][0][kind]["samples"] for kind in ("turns", "paced")] == [20, 10]
    assert [one["megabytes"] for one in found["memory"]] == [2, 4]
    [outage] = found["outage"]
    assert outage["problems"] == [] and outage["backlog"] > 0
    assert "outage of 2 s: lost, twice, out of order" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]
