"""All that differs between versions of Spark, and which of them are supported.

A difference is a name for what a Spark has from a version on; `sparkwal.spark.interfaces` and
others ask `has`, and compare no versions. A difference goes when OLDEST reaches its version.
"""

import re

from sparkwal.errors import OptionError

Version = tuple[int, ...]

OLDEST: Version = (4, 0)
# The newest that the tests ran. A newer one is used, with a warning.
NEWEST: Version = (4, 3)
# The newest that Delta Lake has jars for.
NEWEST_WITH_DELTA: Version = (4, 2)
DELTA = "4.4.0"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
# What a session with Delta Lake is given besides its jars.
DELTA_SETTINGS = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SCALA = "2.13"
INSTALL = "pip install 'sparkwal[spark]'"
OLDEST_JAVA = 17

# A stream's writer gets Arrow batches as a class of its own; before as a DataSourceArrowWriter.
STREAM_ARROW_WRITER: Version = (4, 1)
# Classes of streaming checkpoints are in the package `checkpointing`.
CHECKPOINTING_PACKAGE: Version = (4, 1)
# `spark-pipelines`, Spark Declarative Pipelines.
PIPELINES: Version = (4, 1)
# The column type TIME.
TIME: Version = (4, 1)
# The column types GEOMETRY and GEOGRAPHY.
SPATIAL: Version = (4, 1)
# Spark tells a streaming source where a microbatch begins and how large it may be, and lets it
# take part in availableNow.
READ_LIMITS: Version = (4, 2)
# `to_arrow_schema` asks for the time zone of timestamps; before it is always UTC.
ARROW_TIMEZONE: Version = (4, 2)

# hadoop-aws must be of the version of Spark's own Hadoop.
_HADOOP: dict[Version, str] = {(4, 0): "3.4.1", (4, 1): "3.4.2", (4, 2): "3.5.0", (4, 3): "3.5.0"}
# The first Hadoop whose S3A has conditional create, which the LogStore of this library uses.
CONDITIONAL_CREATE: Version = (3, 4, 2)


_NEEDED_BY = {
    "declarative pipelines": PIPELINES,
    "columns of TIME": TIME,
    "columns of GEOMETRY and GEOGRAPHY": SPATIAL,
    "limits of a stream's first microbatch": READ_LIMITS,
    "streams that wait for a startingTimestamp": READ_LIMITS,
}


def numbers(version: str) -> Version:
    """The first three: 4.2.0.dev1 is (4, 2, 0)."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def has(difference: Version, version: str) -> bool:
    return numbers(version) >= difference


def is_supported(version: str) -> bool:
    return numbers(version) >= OLDEST


def is_tried(version: str) -> bool:
    return numbers(version)[:2] <= NEWEST


# How types are written in a stored schema, as a pattern, and the first Spark that knows them.
TYPES = {r'"time\(': TIME, r'"geo(metry|graphy)\(': SPATIAL}


def lacks(version: str) -> list[str]:
    """The capabilities that this Spark lacks, each with the first Spark that has it."""
    return [
        f"{what} (Spark {text(since)})"
        for what, since in _NEEDED_BY.items()
        if not has(since, version)
    ]


def require(version: str, whose: str) -> None:
    """Raises OptionError for a Spark that is too old; `whose` says which one is meant."""
    if not is_supported(version):
        raise OptionError(
            f"sparkwal needs Spark {text(OLDEST)} or newer, {whose} is {version}: "
            f"{INSTALL} (sparkwal.Log and sparkwal.Appender work without Spark)"
        )


def require_delta(version: str) -> None:
    """Raises OptionError for a Spark that is too new for Delta Lake."""
    if numbers(version)[:2] > NEWEST_WITH_DELTA:
        raise OptionError(
            f"Delta Lake {DELTA} is for Spark up to {text(NEWEST_WITH_DELTA)}, and this is "
            f'{version}: pip install "pyspark=={text(NEWEST_WITH_DELTA)}.*" where a Delta table is '
            "made or read (sparkwal.Log(path).current() reads table and log without Spark)"
        )


def delta_package(version: str) -> str:
    """Maven's coordinates of the Delta Lake for this Spark. Raises OptionError without one."""
    require_delta(version)
    return f"io.delta:delta-spark_{text(numbers(version)[:2])}_{SCALA}:{DELTA}"


def hadoop_aws(version: str) -> str:
    """Maven's coordinates of S3A for this Spark; for an untried one those for the newest."""
    hadoop = _HADOOP.get(numbers(version)[:2], _HADOOP[NEWEST])
    return f"org.apache.hadoop:hadoop-aws:{hadoop}"


def checkpoint_file_manager(version: str) -> str:
    """The class that writes a checkpoint's files without a process for each.

    Spark's own choice forks `stat` and `readlink` for each file. Both rename, and neither syncs.
    """
    package = "checkpointing." if has(CHECKPOINTING_PACKAGE, version) else ""
    return f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"


def text(version: Version) -> str:
    return ".".join(map(str, version))
