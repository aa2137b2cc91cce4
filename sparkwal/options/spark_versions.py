"""The supported versions of Spark, and the differences between them.

Each difference is a constant: the first version of Spark that has a capability. Other modules call
`has` with it and compare no versions themselves. Remove a difference when OLDEST reaches it.
"""

import re

from sparkwal.errors import OptionError, install_extra

Version = tuple[int, ...]

OLDEST: Version = (4, 0)
# The newest version that the tests ran. A newer one causes a warning.
NEWEST: Version = (4, 3)
# The newest version that Delta Lake has jars for.
NEWEST_WITH_DELTA: Version = (4, 2)
DELTA = "4.4.0"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
# The settings of a session with Delta Lake, besides its jars.
DELTA_SETTINGS = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
SCALA = "2.13"
INSTALL = install_extra("spark")
OLDEST_JAVA = 17

# The class DataSourceStreamArrowWriter, for a stream's writer that gets Arrow batches. Older Sparks
# use DataSourceArrowWriter for that.
STREAM_ARROW_WRITER: Version = (4, 1)
# The package `checkpointing` for the classes of streaming checkpoints. This library's manager of
# their files on S3 extends one of them.
CHECKPOINTING_PACKAGE: Version = (4, 1)
# `spark-pipelines`, Spark Declarative Pipelines.
PIPELINES: Version = (4, 1)
# The column type TIME.
TIME: Version = (4, 1)
# The column types GEOMETRY and GEOGRAPHY.
SPATIAL: Version = (4, 1)
# A streaming source gets the start and the limits of a microbatch, and may support availableNow.
READ_LIMITS: Version = (4, 2)
# A source and a sink may have names, and a newer format of checkpoints keeps them.
NAMED_SOURCES: Version = (4, 2)
# `trigger(realTime=…)` of PySpark.
REAL_TIME: Version = (4, 2)
# `to_arrow_schema` has a parameter for the time zone of timestamps. In older Sparks it is UTC.
ARROW_TIMEZONE: Version = (4, 2)

# hadoop-aws must be of the version of Spark's own Hadoop.
_HADOOP: dict[Version, str] = {(4, 0): "3.4.1", (4, 1): "3.4.2", (4, 2): "3.5.0", (4, 3): "3.5.0"}
_CONNECTORS = {"s3": "hadoop-aws", "azure": "hadoop-azure"}
# The first Hadoop whose S3A has conditional create, which this library's Java classes use.
CONDITIONAL_CREATE: Version = (3, 4, 2)

# Capabilities as `doctor` names them, and the difference that each one needs.
_NEEDED_BY = {
    "declarative pipelines": PIPELINES,
    "columns of TIME": TIME,
    "columns of GEOMETRY and GEOGRAPHY": SPATIAL,
    "limits of a stream's first microbatch": READ_LIMITS,
    "streams that wait for a startingTimestamp": READ_LIMITS,
}


def numbers(version: str) -> Version:
    """The first three numbers of a version: (4, 2, 0) for "4.2.0.dev1"."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def has(difference: Version, version: str) -> bool:
    """Whether a Spark of this version has the capability of a difference."""
    return numbers(version) >= difference


def is_supported(version: str) -> bool:
    return numbers(version) >= OLDEST


def supported() -> list[str]:
    """All minor versions, from the oldest to the newest that was tried."""
    return [f"{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]


def is_tried(version: str) -> bool:
    """Whether the tests ran with this Spark, or with a newer one."""
    return numbers(version)[:2] <= NEWEST


# Patterns of types in a stored schema, and the first Spark that supports each type.
TYPES = {r'"time\(': TIME, r'"geo(metry|graphy)\(': SPATIAL}


def lacks(version: str) -> list[str]:
    """The capabilities that this Spark lacks, each with the first Spark that has it."""
    return [
        f"{capability} (Spark {text(since)})"
        for capability, since in _NEEDED_BY.items()
        if not has(since, version)
    ]


def require(version: str, name: str) -> None:
    """Check that a Spark is not too old.

    Args:
        name: the name of this Spark in the message.

    Raises:
        OptionError: the Spark is too old.
    """
    if not is_supported(version):
        raise OptionError(
            f"sparkwal needs Spark {text(OLDEST)} or newer, {name} is {version}: "
            f"{INSTALL} (sparkwal.Log and sparkwal.Appender work without Spark)"
        )


def has_delta(version: str) -> bool:
    """Whether there are jars of Delta Lake for this Spark."""
    return numbers(version)[:2] <= NEWEST_WITH_DELTA


def require_delta(version: str) -> None:
    """Check that Delta Lake has jars for a Spark.

    Raises:
        OptionError: the Spark is too new.
    """
    if not has_delta(version):
        raise OptionError(
            f"Delta Lake {DELTA} is for Spark up to {text(NEWEST_WITH_DELTA)}, and this is "
            f'{version}: pip install "pyspark=={text(NEWEST_WITH_DELTA)}.*" on machines that write '
            "or read Delta tables (sparkwal.Log(path).current() reads table and log without Spark)"
        )


def delta_package(version: str) -> str:
    """The Maven coordinates of Delta Lake for this Spark.

    Raises:
        OptionError: Delta Lake has no jars for this Spark.
    """
    require_delta(version)
    return f"io.delta:delta-spark_{text(numbers(version)[:2])}_{SCALA}:{DELTA}"


def hadoop_connector(kind: str, version: str) -> str:
    """The Maven coordinates of what lets this Spark read a store.

    Args:
        kind: "s3" or "azure".
        version: Spark's. An untried Spark gets those for the newest.
    """
    hadoop = _HADOOP.get(numbers(version)[:2], _HADOOP[NEWEST])
    return f"org.apache.hadoop:{_CONNECTORS[kind]}:{hadoop}"


def checkpoint_file_manager(version: str) -> str:
    """The class that writes checkpoint files without starting processes.

    Spark's default class forks `stat` and `readlink` for each file. Both classes write a file and
    rename it, and neither calls fsync.
    """
    package = "checkpointing." if has(CHECKPOINTING_PACKAGE, version) else ""
    return f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"


def text(version: Version) -> str:
    return ".".join(map(str, version))
