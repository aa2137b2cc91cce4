"""A LogStore for Delta Lake on S3, which puts a version of a table only if it is absent.

Delta's LogStore for s3a:// checks whether a version exists and then puts it, so two writers of the
same version may both succeed. GCSLogStore on s3a:// has the same race: create(overwrite=false) of
S3A sends no If-None-Match.
"""

from pathlib import Path

CLASS = "sparkwal.storage.S3ConditionalLogStore"
SETTING = "spark.delta.logStore.s3a.impl"


def jar() -> Path:
    """The path of the jar, which logstore/build.sh builds."""
    return Path(__file__).parent / "logstore" / "sparkwal-logstore.jar"
