"""What Spark needs to reach a table where it is."""

from __future__ import annotations

from sparkwal.options.store import StoreOptions
from sparkwal.spark import log_store
from support import jvm

# Of the Hadoop that PySpark 4.2 has in it.
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
_ENCRYPTION = {"aes256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3A = "spark.hadoop.fs.s3a."


def on_s3(table: str) -> bool:
    """Whether Spark reaches a table by S3A."""
    return table.lower().startswith(("s3://", "s3a://"))


def packages(table: str) -> list[str]:
    """Maven coordinates, for a session that this process starts."""
    return [HADOOP_AWS] if on_s3(table) and not jvm.started_by_spark_submit() else []


def jars(table: str) -> str | None:
    """The LogStore with which two writers of a table on S3 are safe; as `packages`."""
    return str(log_store.jar()) if packages(table) else None


def s3a_settings(table: str, log: StoreOptions) -> dict[str, str]:
    """How Spark reaches a table that is on the log's own store. May hold secrets."""
    if not on_s3(table) or jvm.started_by_spark_submit():
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
    found = {_S3A + name: value for name, value in known.items() if value is not None}
    return {log_store.SETTING: log_store.CLASS, **found}
