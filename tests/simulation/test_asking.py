"""What a consumer publishes is committed, however Spark tracks its progress."""

from __future__ import annotations

import pytest

from tests.simulation.asking import SEEDS, run


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_consumer_publishes_what_is_committed_and_all_of_it_in_the_end(seed: int) -> None:
    one = run(seed)
    one.read_all()
    if not one.is_async:
        assert one.published == one.head
