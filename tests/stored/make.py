"""Makes the stored logs of this state of the library.

    python -m tests.stored.make LABEL [NAME …]

It writes tests/stored/LABEL/NAME.tar.xz, and beside it the rows as JSON. It replaces none. The
records hold the name of the machine, so give it another:

    unshare --uts sh -c 'hostname localhost; python -m tests.stored.make LABEL'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import sparkwal
from tests.spark.tables import session
from tests.stored import place, streaming, writing
from tests.stored.writing import Expected

WITHOUT_SPARK: dict[str, Callable[[], Expected]] = {
    "takeovers": writing.takeovers,
    "torn": writing.torn,
    "archived": writing.archived,
    "widened": writing.widened,
    "sequencers": writing.sequencers,
    "segments": writing.segments,
    "collected": writing.collected,
    "journal": writing.journal,
    "quarantined": writing.quarantined,
    "leases": writing.leases,
    "lake": writing.lake,
    "keyed": writing.keyed,
}
WITH_SPARK: dict[str, Callable[[SparkSession], Expected]] = {
    "batches": streaming.batches,
    "files": streaming.files,
    "stateful": streaming.stateful,
    "aside": streaming.aside,
    "again": streaming.again,
}


def main(label: str, names: list[str]) -> None:
    folder = place.HERE / label
    folder.mkdir(exist_ok=True)
    chosen = names or [*WITHOUT_SPARK, *WITH_SPARK]
    missing = [name for name in chosen if not (folder / f"{name}.tar.xz").exists()]
    with place.held():
        _prepare()
        for name in missing:
            if name in WITHOUT_SPARK:
                _store(folder, name, WITHOUT_SPARK[name]())
        of_spark = [name for name in missing if name in WITH_SPARK]
        if of_spark:
            spark = _session()
            for name in of_spark:
                _store(folder, name, WITH_SPARK[name](spark))
            spark.stop()


def _prepare() -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.TEMPORARY)
    os.environ["XDG_STATE_HOME"] = str(place.STATE)
    place.TEMPORARY.mkdir()


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(sparkwal.__file__).parents[1])
    spark = session.start({"spark.sql.session.timeZone": "UTC"})
    sparkwal.register(spark)
    return spark


def _store(folder: Path, name: str, expected: Expected) -> None:
    """Store a log and what it must give, and empty the place for the next."""
    names = sorted(each.name for each in place.PLACE.iterdir() if each != place.TEMPORARY)
    text = json.dumps(expected, indent=1, default=place.plain, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n")
    place.pack(folder / f"{name}.tar.xz", names)
    print(name, names, (folder / f"{name}.tar.xz").stat().st_size, flush=True)
    place.clear()
    place.TEMPORARY.mkdir(parents=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
