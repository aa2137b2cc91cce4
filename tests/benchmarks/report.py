"""The results of the benchmark: tables for people, goals, a chart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers import PEERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """One line of the goals: `met` is None if it was not measured."""

    what: str
    goal: str
    measured: str
    met: bool


def goals(results: Results) -> Iterator[Goal]:
    """The goals of which the results hold what is needed."""
    for one in results.get("microbatch", []):
        yield from _microbatch_goals(one)
    for one in results.get("bulk-write", []):
        yield from _write_goals(one["peers"], one["latency_ms"])
    for one in results.get("bulk-read", []):
        yield from _read_goals(one["peers"], one["latency_ms"])
    if found := results.get("recovery"):
        yield from _recovery_goals(found["logs"])
    if found := results.get("memory"):
        above = found["above_idle_mb"]
        what = f"worker memory, {found['arrow_bytes'] / 1e9:.1f} GB in one partition"
        yield Goal(what, "≤ 300 MB", f"{above:.0f} MB", above <= 300)


def _microbatch_goals(one: Results) -> Iterator[Goal]:
    peers, ms = one["peers"], one["latency_ms"]
    for name, requests, puts in (("weaselwal", 3, 2.3), ("inlined", 1, 1.3)):
        if name not in peers:
            continue
        ours = peers[name]
        title = PEERS[name].title
        each = ours["requests_per_microbatch"]
        yield Goal(f"{title}: requests, +{ms} ms", str(requests), f"{each:g}", each <= requests)
        p50 = ours["add_batch_p50_ms"]
        if "noop" in peers:
            over = (p50 - peers["noop"]["add_batch_p50_ms"]) / one["put_ms"]["p50"]
            what = f"{title}: addBatch over no-op, in PUTs, +{ms} ms"
            yield Goal(what, f"≤ {puts}", f"{over:.2f}", over <= puts)
        if ms == 20:
            for peer, times in (("parquet-best", (4, 5)), ("delta-best", (8, 10))):
                if peer in peers:
                    wanted = times[name == "inlined"]
                    ratio = peers[peer]["add_batch_p50_ms"] / p50
                    what = f"{title}: addBatch against {PEERS[peer].title}, +{ms} ms"
                    yield Goal(what, f"≤ 1/{wanted}", f"1/{ratio:.1f}", ratio >= wanted)


def _write_goals(found: Results, ms: int) -> Iterator[Goal]:
    if "weaselwal" not in found:
        return
    ours = found["weaselwal"]["seconds"]
    if "noop" in found:
        ratio = ours / found["noop"]["seconds"]
        what = f"bulk write: time against no-op, +{ms} ms"
        yield Goal(what, "≤ 1.15 ×", f"{ratio:.2f} ×", ratio <= 1.15)
    for name, wanted in (("parquet-best", 1.6), ("delta-best", 1.9)):
        if name in found:
            ratio = found[name]["seconds"] / ours
            what = f"bulk write: throughput against {PEERS[name].title}, +{ms} ms"
            yield Goal(what, f"≥ {wanted} ×", f"{ratio:.2f} ×", ratio >= wanted)


def _read_goals(found: Results, ms: int) -> Iterator[Goal]:
    if "weaselwal" in found and "parquet-best" in found:
        ratio = found["parquet-best"]["seconds"] / found["weaselwal"]["seconds"]
        what = f"bulk read: throughput against Spark's parquet reader, +{ms} ms"
        yield Goal(what, "≥ 1.3 ×", f"{ratio:.2f} ×", ratio >= 1.3)


def _recovery_goals(logs: Sequence[Results]) -> Iterator[Goal]:
    for ms in dict.fromkeys(log["latency_ms"] for log in logs):
        some = [log for log in logs if log["latency_ms"] == ms]
        least, most = min(some, key=_commits), max(some, key=_commits)
        span = f"{least['commits']:,} and {most['commits']:,} commits"
        requests = sorted({r for log in some for r in log["requests"]})
        wanted = "1 GET, 1 LIST, 1 PUT"
        yield Goal(
            f"recovery at {span}, +{ms} ms: requests",
            wanted,
            "; ".join(requests),
            requests == [wanted],
        )
        ratio = most["ms"] / least["ms"]
        measured = f"{ratio:.2f} × ({least['ms']:.0f} ms, {most['ms']:.0f} ms)"
        what = f"recovery at {span}, +{ms} ms: time"
        yield Goal(what, "0.9 … 1.1 ×", measured, 0.9 <= ratio <= 1.1)


def _commits(log: Results) -> int:
    return int(log["commits"])


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def show(results: Results, console: Console) -> None:
    """Everything measured, then the goals."""
    for one in results.get("microbatch", []):
        put = one["put_ms"]["p50"]
        title = f"Microbatches, +{one['latency_ms']} ms; a conditional PUT takes {put} ms"
        columns = [
            "",
            "addBatch p50 ms",
            "p99 ms",
            "microbatches",
            "requests",
            "of them",
            "$ per million",
        ]
        microbatches = [
            (
                PEERS[name].title,
                f"{x['add_batch_p50_ms']:.0f}",
                f"{x['add_batch_p99_ms']:.0f}",
                x["microbatches"],
                f"{x['requests_per_microbatch']:g}",
                ", ".join(f"{n:g} {kind}" for kind, n in x["requests"].items()),
                f"{x['dollars_per_million']:,.2f}",
            )
            for name, x in one["peers"].items()
        ]
        console.print(table(title, columns, microbatches))
    for part in ("bulk-write", "bulk-read"):
        for one in results.get(part, []):
            size = results["source"]["arrow_bytes"]
            bulk = [
                (
                    PEERS[name].title,
                    f"{x['seconds']:.2f}",
                    f"{size / x['seconds'] / 1e6:.0f}",
                    f"{min(x['runs']):.2f} … {max(x['runs']):.2f}",
                    f"{x['stored_bytes'] / 1e6:.0f}" if "stored_bytes" in x else "",
                )
                for name, x in one["peers"].items()
            ]
            title = f"{part.replace('-', ' ').capitalize()}, {size / 1e6:.0f} MB of Arrow"
            title += f", +{one['latency_ms']} ms"
            console.print(table(title, ["", "s", "MB/s", "from … to", "MB stored"], bulk))
    show_goals(goals(results), console)


def save(results: Any, output: Path, console: Console) -> None:
    """As JSON, for people and programs."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    console.print(f"written to {output}", highlight=False)


def show_goals(found: Iterable[Goal], console: Console) -> None:
    """Each goal, what was measured, and whether that is enough."""
    lines = [(g.what, g.goal, g.measured, "yes" if g.met else "NO") for g in found]
    console.print(table("Goals", ["", "goal", "measured", "met"], lines))


_COLOURS = {
    "jvm-noop": "#d0d0d0",
    "noop": "#b0b0b0",
    "weaselwal": "#1f77b4",
    "inlined": "#0b4f8a",
    "lz4": "#6baed6",
    "uncompressed": "#9ecae1",
    "foreachbatch": "#9467bd",
    "parquet": "#ff9f40",
    "parquet-best": "#ffbf86",
    "delta": "#d62728",
    "delta-best": "#e88a8b",
}


def draw(results: Results, file: Path) -> None:
    """Draw the chart as SVG, unless no part of it was measured."""
    if (figure := chart(results)) is not None:
        figure.savefig(file, metadata={"Date": None})


def chart(results: Results) -> Figure | None:
    """A panel for each part that was measured; needs matplotlib, the extra `bench`.

    Bars begin at zero, so that their lengths compare.
    """
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "sparkwal"
    panels = [
        *_microbatch_panels(_at_20_ms(results.get("microbatch", []))),
        *_bulk_panels(_at_20_ms(results.get("bulk-write", [])), results),
    ]
    if not panels:
        return None
    figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axis, (title, values) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        axis.set_title(title, fontsize=10)
        _bars(axis, values)
    return figure


Panel = tuple[str, Mapping[str, float]]


def _microbatch_panels(one: Results | None) -> Iterator[Panel]:
    if one is None:
        return
    peers = one["peers"]
    yield (
        f"addBatch of a microbatch, median ms\n(+{one['latency_ms']} ms on each request)",
        {n: x["add_batch_p50_ms"] for n, x in peers.items()},
    )
    yield (
        "requests of a million microbatches, $",
        {n: x["dollars_per_million"] for n, x in peers.items() if "noop" not in n},
    )


def _bulk_panels(one: Results | None, results: Results) -> Iterator[Panel]:
    if one is None:
        return
    size = results["source"]["arrow_bytes"] / 1e6
    yield (
        f"bulk write of {size:.0f} MB of Arrow, MB/s\n(+{one['latency_ms']} ms on each request)",
        {n: size / x["seconds"] for n, x in one["peers"].items()},
    )


def _at_20_ms(found: Sequence[Results]) -> Results | None:
    return next((x for x in found if x["latency_ms"] == 20), found[0] if found else None)


def _bars(axis: Any, values: Mapping[str, float]) -> None:
    names = list(values)[::-1]
    colours = [_COLOURS[name] for name in names]
    bars = axis.barh([PEERS[n].title for n in names], [values[n] for n in names], color=colours)
    axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)
