"""The values that Prometheus gets by a scrape."""

from __future__ import annotations

from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]
_open = build_opener(ProxyHandler({})).open


def samples(text: str) -> Samples:
    """(name, value of each label in the order of the labels' names…) → value."""
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if not each.name.endswith("_created")
    }


def scrape(port: int) -> Samples:
    with _open(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return samples(answer.read().decode())
