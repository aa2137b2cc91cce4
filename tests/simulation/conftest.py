"""A search names the rules whose mutations it catches."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.simulation.mutations import MUTATIONS

# The rules by the `where` of their mutations: a configuration, a shape of journals or a test.
KEYS: dict[str, list[str]] = defaultdict(list)
for mutation in MUTATIONS:
    KEYS[mutation.where].append(mutation.name)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        searched = parameters.get("name", item.originalname)
        if keys := KEYS.get(searched):
            item.add_marker(pytest.mark.proves(*keys))
