"""Delta's LogStore for S3 that comes with this library: it puts a version only if it is absent.

What Delta brings for s3a:// looks whether a version is there and then puts it: two writers of one
version both succeed. So does GCSLogStore: S3A's create(overwrite=false) sends no If-None-Match.
"""

from pathlib import Path

CLASS = "sparkwal.storage.S3ConditionalLogStore"
SETTING = "spark.delta.logStore.s3a.impl"


def jar() -> Path:
    """Built by logstore/build.sh."""
    return Path(__file__).parent / "logstore" / "sparkwal-logstore.jar"
