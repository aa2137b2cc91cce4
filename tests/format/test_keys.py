"""Position ↔ number ↔ key over the whole 64-bit range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format import keys
from sparkwal.format.keys import MAX

windows = st.sampled_from(keys.WINDOWS)
numbers = st.one_of(
    st.integers(0, MAX),
    st.integers(MAX - 10**7, MAX),
    st.integers(0, 10**7),
)


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    """(window, position), often at the ends of the range."""
    window = draw(windows)
    last = keys.last_position(window)
    near = st.one_of(st.integers(0, 5), st.integers(last - 5, last))
    return window, draw(st.one_of(st.integers(0, last), near))


@given(places())
def test_a_slot_names_its_position_and_no_other(place: tuple[int, int]) -> None:
    window, position = place
    number = keys.slot(position, window)
    assert keys.is_slot(number, window)
    assert keys.position(number, window) == position
    assert number == MAX - window * position


@given(places(), st.data())
def test_a_data_number_lies_in_its_window_and_is_no_slot(
    place: tuple[int, int], data: st.DataObject
) -> None:
    window, position = place
    partition = data.draw(st.integers(0, window - 2))
    number = keys.data(position, window, partition)
    assert keys.position(number, window) == position
    assert not keys.is_slot(number, window)
    assert keys.slot(position, window) - number - 1 == partition
    assert number >= 0


@given(places())
def test_windows_touch_and_do_not_overlap(place: tuple[int, int]) -> None:
    window, position = place
    lowest = keys.data(position, window, window - 2)
    if position < keys.last_position(window):
        assert keys.slot(position + 1, window) == lowest - 1
    else:
        # Not one more whole window fits below.
        assert lowest < window


@given(numbers)
def test_a_key_is_twenty_digits_and_decodes_to_its_number(number: int) -> None:
    name = keys.encode(number)
    assert len(name) == 20
    assert keys.decode(name) == number
    assert keys.key("a/b", number) == f"a/b/batches/{name}"
    assert keys.key("", number) == f"batches/{name}"


@given(numbers, numbers)
def test_byte_order_of_keys_is_the_order_of_numbers(one: int, other: int) -> None:
    first, second = (keys.key("log", n).encode() for n in (one, other))
    assert (first < second) == (one < other)


@given(places(), places())
def test_newer_positions_sort_first(one: tuple[int, int], other: tuple[int, int]) -> None:
    window = one[0]
    mine, theirs = one[1], min(other[1], keys.last_position(window))
    found = [keys.key("log", keys.slot(p, window)) for p in (mine, theirs)]
    assert (found[0] < found[1]) == (mine > theirs)


@given(windows)
def test_the_ends_of_the_range_raise(window: int) -> None:
    last = keys.last_position(window)
    assert keys.slot(0, window) == MAX
    for position in (-1, last + 1):
        with pytest.raises(ValueError, match="outside 0 … "):
            keys.slot(position, window)
        with pytest.raises(ValueError, match="outside 0 … "):
            keys.data(position, window, 0)
    for partition in (-1, window - 1):
        with pytest.raises(ValueError, match="partition"):
            keys.data(0, window, partition)


@given(st.text(max_size=24))
def test_other_names_are_not_numbers(name: str) -> None:
    digits = len(name) == 20 and name.isascii() and name.isdigit() and int(name) <= MAX
    assert (keys.decode(name) is not None) == digits


@pytest.mark.parametrize(
    "name",
    [str(MAX + 1), "9" * 20, "٠" * 20, "1" * 19, "1" * 21, "1" * 20 + "\n", "-" + "1" * 19, ""],
)
def test_names_that_look_like_numbers_and_are_none(name: str) -> None:
    assert keys.decode(name) is None


@pytest.mark.parametrize("root", ["", "wal", "team/wal", "sequencers/wal"])
def test_the_path_above_a_sequencer(root: str) -> None:
    assert keys.root_prefix(keys.sequencer_prefix(root, "eu")) == root


@pytest.mark.parametrize("prefix", ["", "wal", "sequencers", "team/sequencers"])
def test_a_log_that_is_no_sequencers_has_no_path_above(prefix: str) -> None:
    assert keys.root_prefix(prefix) is None
