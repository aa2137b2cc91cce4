"""The text that Spark shows for an error in a Python worker."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkwal.errors import OptionError
from sparkwal.spark.readable import readable_errors


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), MemoryError(), pa.ArrowMemoryError("malloc of 64")],
)
def test_a_worker_without_memory_names_the_settings(error: Exception) -> None:
    with (
        pytest.raises(OptionError, match=r"planner\.pythonExecution\.memory.*pyspark\.memory"),
        readable_errors(),
    ):
        raise error


def test_another_error_of_a_worker_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="^something else$"), readable_errors():
        raise RuntimeError("something else")
