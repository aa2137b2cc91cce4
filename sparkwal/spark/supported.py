"""Which Spark this is for. Imports nothing that an older Spark lacks."""

from __future__ import annotations

import re

from sparkwal.errors import OptionError

OLDEST = (4, 2)


def is_supported(version: str) -> bool:
    """Whether a version of Spark has what the data source is made of."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST


def require(version: str, whose: str) -> None:
    """Raises OptionError for a Spark that is too old; `whose` says which one is meant."""
    if not is_supported(version):
        raise OptionError(
            f'sparkwal needs Spark 4.2, {whose} is {version}: pip install "pyspark>=4.2,<4.3" '
            "(sparkwal.Log and sparkwal.Appender work without Spark)"
        )
