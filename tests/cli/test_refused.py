"""`sparkwal refused --again` writes refused rows into the table that the log names."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

import sparkwal
from sparkwal.cli.main import main
from tests.lifecycle.iceberg_table import IcebergLake
from tests.lifecycle.test_iceberg_again import KEYED, mend, take_long_values, values
from tests.lifecycle.test_iceberg_refused import LONG, compact, lake, row, url

__all__ = ["lake", "url"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["refused", *arguments])


def test_rows_go_into_an_iceberg_table_without_a_jvm(lake: IcebergLake) -> None:
    assert run(lake.path, "--again").exit_code == 2
    lake.append([row(1), row(None, "b"), row(None, LONG)])
    # Nothing is aside yet.
    ended = run(lake.path, "--again", "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == {"sequencer": "default", "written": 0, "refused": 0}
    compact(lake)
    assert "--again writes them" in run(lake.path).output
    mend(lake)
    ended = run(lake.path, "--again")
    assert ended.exit_code == 0 and "default" in ended.output, ended.output
    assert values(lake) == ["a", "b"]
    ended = run(lake.path, "--again", "--all", "--json")
    assert json.loads(ended.stdout) == {"sequencer": "default", "written": 0, "refused": 1}
    take_long_values(lake)
    ended = run(lake.path, "--again", "--json")
    assert json.loads(ended.stdout) == {"sequencer": "default", "written": 1, "refused": 0}
    assert values(lake) == ["a", "b", LONG]


def test_the_log_names_keys_sequence_and_horizon(url: str, tmp_path: Path) -> None:
    target = {**KEYED, "keys": ["id"], "sequence_by": "v"}
    lake = IcebergLake(tmp_path, table=url)
    lake.append([{"id": 1, "v": "a"}])
    life = sparkwal.Lifecycle(
        lake.path, table=url, refusedRows="aside", tombstoneHorizon="3h", **target
    )
    life.run_once(whole=True)
    with lake.iceberg().update_spec() as change:
        change.add_identity("v")
    lake.append([{"id": 1, "v": LONG}, {"id": 2, "v": "b"}])
    life.run_once(whole=True)
    take_long_values(lake)
    ended = run(lake.path, "--again", "--json")
    assert json.loads(ended.stdout) == {"sequencer": "default", "written": 1, "refused": 0}
    assert values(lake) == ["b", LONG]


def test_a_log_or_a_table_that_does_not_exist_is_an_error(lake: IcebergLake) -> None:
    ended = run(f"{lake.path}/nothing")
    assert ended.exit_code == 2 and "no log" in ended.output
    lake.append([row(1)])
    assert "no refused rows" in run(lake.path).output
    ended = run(lake.path, "--sequencer", "other")
    assert ended.exit_code == 2 and "no log" in ended.output
    lake.append([row(None, "b"), row(None, "c")])
    compact(lake)
    assert "refused rows: 2, reasons: 1" in run(lake.path).output
    lake.catalog.drop_table("db.orders_refused")
    ended = run(lake.path)
    assert ended.exit_code == 1 and "2 rows of these logs" in ended.output, ended.output
