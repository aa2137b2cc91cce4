"""Java classes with which Spark creates a file on S3 only if it is absent, by a conditional PUT.

Delta's LogStore for s3a:// checks whether a version of a table exists and then puts it, so two
writers of the same version may both succeed. GCSLogStore on s3a:// has the same race:
create(overwrite=false) of S3A sends no If-None-Match. Spark's managers of checkpoint files have
this race too, and send many requests for each file.
"""

from pathlib import Path

LOG_STORE = "sparkwal.storage.S3ConditionalLogStore"
LOG_STORE_SETTING = "spark.delta.logStore.s3a.impl"
# For the setting spark.sql.streaming.checkpointFileManagerClass.
FILE_MANAGER = "sparkwal.storage.S3CheckpointFileManager"


def jar() -> Path:
    """The path of the jar with these classes, which java/build.sh builds."""
    return Path(__file__).parent / "java" / "sparkwal-s3a.jar"
