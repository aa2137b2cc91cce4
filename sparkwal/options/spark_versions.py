"""Which Spark this is for. Imports nothing that an older Spark lacks."""

import re

from sparkwal.errors import OptionError

OLDEST = (4, 2)
INSTALL = "pip install 'pyspark>=4.2,<4.4'"
# The newest that the Delta Lake of the extra `delta` is made for.
NEWEST_WITH_DELTA = (4, 2)


def is_supported(version: str) -> bool:
    return numbers(version) >= OLDEST


def require(version: str, whose: str) -> None:
    """Raises OptionError for a Spark that is too old; `whose` says which one is meant."""
    if not is_supported(version):
        raise OptionError(
            f"sparkwal needs Spark 4.2 or 4.3, {whose} is {version}: "
            f"{INSTALL} (sparkwal.Log and sparkwal.Appender work without Spark)"
        )


def require_delta(version: str) -> None:
    """Raises OptionError for a Spark that is too new for Delta Lake."""
    if numbers(version)[:2] > NEWEST_WITH_DELTA:
        raise OptionError(
            f"Delta Lake 4.4 is for Spark up to 4.2, and this is {version}: "
            'pip install "pyspark==4.2.0" where a Delta table is made or read '
            "(sparkwal.Log(path).current() reads table and log without Spark)"
        )


def numbers(version: str) -> tuple[int, ...]:
    """The first three: 4.2.0.dev1 is (4, 2, 0)."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
