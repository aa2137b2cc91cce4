"""What Spark needs to reach a table where it is."""

from __future__ import annotations

from sparkwal.options.store import StoreOptions
from support import jvm

# The version of the Hadoop that PySpark 4.2 contains.
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
_ENCRYPTION = {"aes256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3A = "spark.hadoop.fs.s3a."


def _connects(table: str) -> bool:
    """Whether the session that this process starts reaches the table by S3A."""
    return table.lower().startswith(("s3://", "s3a://")) and not jvm.started_by_spark_submit()


def packages(table: str) -> list[str]:
    """Maven coordinates of what a session needs."""
    return [HADOOP_AWS] if _connects(table) else []


def s3a_settings(table: str, log: StoreOptions) -> dict[str, str]:
    """How Spark reaches a table that is on the log's own store. May hold secrets."""
    if not _connects(table):
        return {}
    known = {
        "endpoint": log.endpoint,
        "endpoint.region": log.region,
        "path.style.access": "true" if log.endpoint else None,
        "access.key": log.access_key_id,
        "secret.key": log.secret_access_key,
        "session.token": log.session_token,
        "encryption.algorithm": _ENCRYPTION[log.encryption] if log.encryption else None,
        "encryption.key": log.kms_key_id,
        "create.checksum.algorithm": "CRC32" if log.checksum == "crc32" else None,
        "requester.pays.enabled": "true" if log.requester_pays else None,
    }
    return {_S3A + name: value for name, value in known.items() if value is not None}
