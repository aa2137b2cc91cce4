"""What the benchmark draws: all of it can be read, under the names that its tables use."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers import PEERS
from benchmarks.report import chart

pytest.importorskip("matplotlib")

MICROBATCH = {
    name: {"add_batch_p50_ms": ms, "dollars_per_million": ms / 30}
    for name, ms in {"noop": 78, "weaselwal": 94, "inlined": 70, "delta": 3392}.items()
}
RESULTS: dict[str, Any] = {
    "microbatch": [{"latency_ms": 20, "peers": MICROBATCH}],
    "source": {"arrow_bytes": 848e6},
    "bulk-write": [
        {"latency_ms": 20, "peers": {"noop": {"seconds": 5}, "weaselwal": {"seconds": 6}}}
    ],
}


def test_no_title_is_cut_off_and_no_two_overlap() -> None:
    figure = chart(RESULTS)
    figure.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in figure.axes]
    assert len(boxes) == 3
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert sum(box.overlaps(other) for other in boxes) == 1


def test_bars_begin_at_zero_and_have_the_names_of_the_tables() -> None:
    figure = chart(RESULTS)
    for axis in figure.axes:
        assert axis.get_xscale() == "linear" and axis.get_xlim()[0] == 0
        names = {label.get_text() for label in axis.get_yticklabels()}
        assert names <= {peer.title for peer in PEERS.values()}
    titles = [PEERS[name].title for name in ("inlined", "weaselwal")]
    assert titles == ["sparkwal", "sparkwal, rows as objects"]


def test_without_figures_nothing_is_drawn() -> None:
    assert chart({}) is None
