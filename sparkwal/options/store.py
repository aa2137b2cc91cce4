"""How to reach the store and the log in it: common to writing and reading."""

from dataclasses import dataclass, fields
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.format.keys import ROOT, sequencer_prefix
from sparkwal.options import types
from sparkwal.options.types import ABOVE_ZERO, Limit, option
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.path import check_spelling


@dataclass(frozen=True)
class StoreOptions:
    path: str = option(
        "path",
        types.text,
        "",
        "where the log is: s3://bucket/prefix, file:///folder or a folder",
        "required",
    )
    endpoint: str | None = option("endpoint", types.text, None, "URL of an S3-compatible server")
    region: str | None = option("region", types.text, None, "AWS region")
    addressing_style: str | None = option(
        "addressingStyle",
        types.one_of("path", "virtual", "auto"),
        None,
        "where a request names the bucket: in its path, or virtual: in the host's name",
        "the AWS configuration's, else path with endpoint, auto without",
    )
    profile: str | None = option(
        "profile", types.text, None, "named profile of the AWS configuration"
    )
    access_key_id: str | None = option(
        "accessKeyId", types.secret, None, "access key; with secretAccessKey"
    )
    secret_access_key: str | None = option(
        "secretAccessKey", types.secret, None, "never printed or stored"
    )
    session_token: str | None = option(
        "sessionToken", types.secret, None, "of temporary credentials"
    )
    encryption: str | None = option(
        "serverSideEncryption",
        types.one_of("aes256", "aws:kms", "aws:kms:dsse"),
        None,
        "of every object that is written: AES256, aws:kms or aws:kms:dsse",
        "the bucket's",
    )
    kms_key_id: str | None = option(
        "kmsKeyId",
        types.text,
        None,
        "with aws:kms or aws:kms:dsse: the key's id or ARN",
        "the bucket's, or AWS' own",
    )
    bucket_key: bool | None = option(
        "bucketKeyEnabled",
        types.boolean,
        None,
        "with aws:kms: one key of the bucket for many objects, which makes far fewer requests "
        "to KMS",
        "the bucket's",
    )
    storage_class: str | None = option(
        "storageClass",
        types.one_of(
            "standard",
            "standard_ia",
            "onezone_ia",
            "intelligent_tiering",
            "glacier_ir",
            "reduced_redundancy",
        ),
        None,
        "of every object that is written; classes that need a restore before a read are refused",
        "STANDARD",
    )
    checksum: str = option(
        "checksum",
        types.one_of("none", "crc32"),
        "none",
        "crc32: S3 checks what it stores, and keeps the checksum; a bucket with Object Lock "
        "demands it",
    )
    requester_pays: bool = option(
        "requesterPays", types.boolean, False, "the requester pays for the bucket's requests"
    )
    bucket_owner: str | None = option(
        "expectedBucketOwner",
        types.account_id,
        None,
        "S3 refuses all requests if the bucket is another account's",
    )
    max_in_flight: int = option(
        "maxInFlightRequests",
        types.whole,
        50,
        "requests under way at once, 1…1000",
        limit=Limit(
            lambda number: 1 <= number <= 1000,
            "1…1000 (recovery reads at most 1000 objects in its one LIST)",
        ),
    )
    pool_size: int | None = option(
        "targetPoolSize",
        types.whole,
        None,
        "connections kept open; at least maxInFlightRequests",
        "2 × maxInFlightRequests",
        limit=ABOVE_ZERO,
    )
    max_retries: int = option(
        "maxRetryAttempts", types.whole, 3, "retries of one request before the query fails"
    )
    hedge: bool = option(
        "hedge",
        types.boolean,
        True,
        "send a late request once more on another connection, and take the first answer; "
        "false: a dead connection costs a minute",
    )
    retry_delay_ms: int = option(
        "retryBaseDelayMs",
        types.duration,
        100,
        "first backoff; doubles, with full jitter",
        limit=ABOVE_ZERO,
    )

    sequencer: str = option(
        "sequencer",
        types.sequencer_name,
        ROOT,
        "the independent log of this name under the path",
        "the log at the path itself",
    )

    def check(self) -> None:
        """Raises OptionError for values out of range and for pairs that contradict each other."""
        if not self.path:
            raise OptionError(
                'option path is missing: .option("path", "s3://bucket/wal") or .start("s3://…")'
            )
        check_spelling(self.path)
        if self.pool_size and self.pool_size < self.max_in_flight:
            raise OptionError(
                f"targetPoolSize {self.pool_size} is below maxInFlightRequests "
                f"{self.max_in_flight}: raise the one or lower the other"
            )
        _ = self.s3  # it checks the keys and the endpoint
        if self.profile is not None and self.access_key_id is not None:
            raise OptionError("profile and accessKeyId contradict each other: give one of them")
        if self.kms_key_id is not None and self.encryption not in ("aws:kms", "aws:kms:dsse"):
            raise OptionError("kmsKeyId needs serverSideEncryption=aws:kms or aws:kms:dsse")
        if self.bucket_key is not None and self.encryption != "aws:kms":
            raise OptionError("bucketKeyEnabled needs serverSideEncryption=aws:kms")

    @property
    def log_path(self) -> str:
        """For people and as a name."""
        inside = sequencer_prefix("", self.sequencer)
        return f"{self.path.rstrip('/')}/{inside}" if inside else self.path

    @property
    def s3(self) -> S3Config:
        names = {each.name for each in fields(S3Config)}
        same: dict[str, Any] = {name: value for name, value in vars(self).items() if name in names}
        same["checksum"] = self.checksum == "crc32"
        connections, parts = self.pool_size or 2 * self.max_in_flight, min(self.max_in_flight, 4)
        return S3Config(**same, max_pool_connections=connections, max_in_flight_parts=parts)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(max_retry_attempts=self.max_retries, base_delay_ms=self.retry_delay_ms)


def refuse(options: StoreOptions, why: str, *names: str) -> None:
    """Raises OptionError for the first of the named options that was given."""
    for each in fields(options):
        name = each.metadata["name"]
        if name in names and getattr(options, each.name) != each.default:
            raise OptionError(f"{name} {why}: remove it")
