"""Which requests a record proves."""

from __future__ import annotations

import pytest

from sparkwal.sql.past import override_prices, price
from sparkwal.sql.relations import read_requests, write_requests
from tests.sql.headers_of import commit, leader

MB = 2**20


def test_a_commit_is_a_put_and_one_for_each_object() -> None:
    assert write_requests(commit(1, 0), None) == {"PUT": 1}
    assert write_requests(commit(1, 0, objects=(5, 16 * MB)), None) == {"PUT": 3}
    # 17 MiB are sent as parts of 8 MiB, which are begun and ended.
    large = commit(1, 0, objects=(17 * MB,))
    assert write_requests(large, None) == {"PUT": 1 + 5}
    assert write_requests(large, None, "azure") == {"PUT": 1 + 4}
    assert write_requests(large, None, "google") == {"PUT": 1 + 1}


def test_a_leader_looked_at_the_log_first() -> None:
    # Two GETs proved that there was no log.
    assert write_requests(leader(0, 0), None) == {"PUT": 1, "LIST": 1, "GET": 2}
    assert write_requests(leader(9, 0), commit(8, 0)) == {"PUT": 1, "LIST": 1, "GET": 1}
    # After an appender with 50 slots in flight it looked back 49, and there are 8.
    behind = leader(8, 0, limit=50)
    assert write_requests(leader(9, 0), behind) == {"PUT": 1, "LIST": 1, "GET": 1 + 8}
    assert write_requests(leader(9, 0, reason="seal"), behind) == {"PUT": 1}


def test_an_archive_was_put_and_the_one_before_it_read() -> None:
    first = leader(5, 0, archive="a")
    assert write_requests(first, commit(4, 0)) == {"PUT": 2, "LIST": 1, "GET": 1}
    assert write_requests(leader(9, 0, archive="b"), first) == {"PUT": 2, "LIST": 1, "GET": 2}
    assert write_requests(leader(9, 0, archive="a"), first) == {"PUT": 1, "LIST": 1, "GET": 1}


def test_a_read_gets_each_record_and_its_objects_in_runs_of_8_mib() -> None:
    assert read_requests(leader(0, 0)) == 1
    assert read_requests(commit(0, 0, objects=(5, 17 * MB))) == 1 + 1 + 3


def test_prices_are_changed_by_name() -> None:
    assert override_prices({}, "gs://bucket/wal")["storage"] == 0.02
    assert override_prices({}, "az://container/wal")["storage"] == 0.0184
    assert override_prices({}, "/wal")["storage"] == 0.023
    prices = override_prices({"put": "0.01", "storage": "0"})
    assert price({"PUT": 1000, "LIST": 1000, "DELETE": 10**9}, prices) == pytest.approx(0.015)
    for wrong in ({"PUT": "1"}, {"put": "x"}, {"put": "-1"}, {"get": "nan"}, {"get": "inf"}):
        with pytest.raises(ValueError, match="price"):
            override_prices(wrong)
