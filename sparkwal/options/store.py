"""The options of the store and of the log's path, which reading and writing share."""

from dataclasses import dataclass, fields
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.format.keys import ROOT, sequencer_prefix
from sparkwal.options import types
from sparkwal.options.types import ABOVE_ZERO, Limit, option
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.path import check_spelling, kind_of_store

_OF_S3 = (
    "region",
    "addressingStyle",
    "profile",
    "sessionToken",
    "serverSideEncryption",
    "kmsKeyId",
    "bucketKeyEnabled",
    "storageClass",
    "checksum",
    "requesterPays",
    "expectedBucketOwner",
)


@dataclass(frozen=True)
class StoreOptions:
    path: str = option(
        "path",
        types.text,
        "",
        "the log's location: s3://bucket/prefix, abfss://container@account.dfs.core.windows.net/"
        "prefix, az://container/prefix, gs://bucket/prefix, file:///folder or a folder",
        "required",
    )
    endpoint: str | None = option(
        "endpoint",
        types.text,
        None,
        "URL of an S3-compatible server, of an Azure account, or of a test server of Google's",
    )
    region: str | None = option("region", types.text, None, "AWS region")
    addressing_style: str | None = option(
        "addressingStyle",
        types.one_of("path", "virtual", "auto"),
        None,
        "how a request names the bucket: in its path, or virtual: in the host's name",
        "the AWS configuration's, otherwise path with endpoint, auto without",
    )
    profile: str | None = option(
        "profile", types.text, None, "named profile of the AWS configuration"
    )
    access_key_id: str | None = option(
        "accessKeyId",
        types.secret,
        None,
        "access key, or on Azure the account; with secretAccessKey",
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
        "of every object that is written; no class that needs a restore before a read",
        "STANDARD",
    )
    checksum: str = option(
        "checksum",
        types.one_of("none", "crc32"),
        "none",
        "crc32: S3 checks each object against its checksum, and keeps it; a bucket with Object "
        "Lock demands it",
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
        types.integer,
        50,
        "requests in flight at once, 1…1000",
        limit=Limit(
            lambda number: 1 <= number <= 1000,
            "1…1000 (recovery reads at most 1000 objects in its one LIST)",
        ),
    )
    pool_size: int | None = option(
        "targetPoolSize",
        types.integer,
        None,
        "connections kept open; at least maxInFlightRequests",
        "2 × maxInFlightRequests",
        limit=ABOVE_ZERO,
    )
    max_retries: int = option(
        "maxRetryAttempts", types.integer, 3, "retries of one request before the query fails"
    )
    hedge: bool = option(
        "hedge",
        types.boolean,
        True,
        "send a late request a second time on another connection, and take the first answer; "
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
    table_location: str | None = option(
        "tableLocation",
        types.text,
        None,
        "the table of the log, if it is on another store than the log: a reader opens no other "
        "table there. Several with commas between",
        "none",
    )

    def check(self) -> None:
        """Check the values together.

        Raises:
            OptionError: a value is out of range, or two options contradict.
        """
        if not self.path:
            raise OptionError(
                'option path is missing: .option("path", "s3://bucket/wal") or .start("s3://…")'
            )
        check_spelling(self.path)
        if kind_of_store(self.path) in ("azure", "google"):
            refuse(self, "is for a path on S3, and this one is on another store", *_OF_S3)
        if self.pool_size and self.pool_size < self.max_in_flight:
            raise OptionError(
                f"targetPoolSize {self.pool_size} is below maxInFlightRequests "
                f"{self.max_in_flight}: raise the one or lower the other"
            )
        _ = self.s3  # S3Config checks the keys and the endpoint.
        if self.profile is not None and self.access_key_id is not None:
            raise OptionError("profile and accessKeyId contradict each other: give one of them")
        if self.kms_key_id is not None and self.encryption not in ("aws:kms", "aws:kms:dsse"):
            raise OptionError("kmsKeyId needs serverSideEncryption=aws:kms or aws:kms:dsse")
        if self.bucket_key is not None and self.encryption != "aws:kms":
            raise OptionError("bucketKeyEnabled needs serverSideEncryption=aws:kms")

    def reaches(self, url: str) -> bool:
        """Whether these options also say how a table at `url` is reached."""
        return kind_of_store(url) in ("file", "s3", kind_of_store(self.path))

    @property
    def log_path(self) -> str:
        """The path with the sequencer's folder, for messages and as a name of the log."""
        subfolder = sequencer_prefix("", self.sequencer)
        return f"{self.path.rstrip('/')}/{subfolder}" if subfolder else self.path

    @property
    def s3(self) -> S3Config:
        names = {field.name for field in fields(S3Config)}
        shared: dict[str, Any] = {
            name: value for name, value in vars(self).items() if name in names
        }
        shared["checksum"] = self.checksum == "crc32"
        return S3Config(
            **shared,
            max_pool_connections=self.pool_size or 2 * self.max_in_flight,
            max_in_flight_parts=min(self.max_in_flight, 4),
        )

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(max_retry_attempts=self.max_retries, base_delay_ms=self.retry_delay_ms)


def refuse(options: StoreOptions, reason: str, *names: str) -> None:
    """Check that none of the named options is set.

    Raises:
        OptionError: an option is set; its message is the option's name and `reason`.
    """
    for field in fields(options):
        name = field.metadata["name"]
        if name in names and getattr(options, field.name) != field.default:
            raise OptionError(f"{name} {reason}: remove it")
