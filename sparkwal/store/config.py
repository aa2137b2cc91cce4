"""How a store is reached and how patiently: plain values, checked when they are made."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from isal.isal_zlib import crc32

from sparkwal.errors import OptionError

# Seconds that a store may ask for between two attempts.
LONGEST_WAIT = 60.0


def said(**parameters: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in parameters.items() if value is not None}


@dataclass(frozen=True)
class S3Config:
    """How to reach S3, and what requests say. None: from the environment, or the bucket's to say.

    Raises OptionError for an endpoint that is no http(s) URL and for half a pair of keys.
    """

    endpoint: str | None = None
    region: str | None = None
    addressing_style: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    max_pool_connections: int = 100
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    max_in_flight_parts: int = 4
    hedge: bool = True
    encryption: str | None = None
    kms_key_id: str | None = None
    bucket_key: bool | None = None
    storage_class: str | None = None
    checksum: bool = False
    requester_pays: bool = False
    bucket_owner: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            normal_endpoint(self.endpoint)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise OptionError("accessKeyId and secretAccessKey go together: give both or neither")
        check_keys(self.access_key_id, self.secret_access_key, self.session_token)
        if self.session_token is not None and self.access_key_id is None:
            raise OptionError("sessionToken needs accessKeyId and secretAccessKey")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no message may show."""
        values = (self.access_key_id, self.secret_access_key, self.session_token)
        return tuple(value for value in values if value)

    @property
    def on_all(self) -> dict[str, Any]:
        return said(
            RequestPayer="requester" if self.requester_pays else None,
            ExpectedBucketOwner=self.bucket_owner,
        )

    @property
    def on_new(self) -> dict[str, Any]:
        """Parameters of the request that begins an object: a PUT, or CreateMultipartUpload."""
        encryption = "AES256" if self.encryption == "aes256" else self.encryption
        return self.on_all | said(
            ServerSideEncryption=encryption,
            SSEKMSKeyId=self.kms_key_id,
            BucketKeyEnabled=self.bucket_key,
            StorageClass=self.storage_class.upper() if self.storage_class else None,
        )

    def checksum_of(self, body: bytes) -> dict[str, str]:
        """Parameters of the request that sends these bytes."""
        if not self.checksum:
            return {}
        return {"ChecksumCRC32": base64.b64encode(crc32(body).to_bytes(4, "big")).decode()}


def check_keys(*keys: str | None) -> None:
    """Refuse keys that cannot be sent in a header, because http.client's error would show them.

    Args:
        keys: an access key id, a secret access key and a session token.

    Raises:
        OptionError: one has a character that no key has. The message does not show the key.
    """
    for name, key in zip(("accessKeyId", "secretAccessKey", "sessionToken"), keys, strict=True):
        if key is not None and not all("!" <= character <= "~" for character in key):
            raise OptionError(
                f"{name} has a character that no key has, such as a space or a line end: correct "
                "it where it comes from. (The value is not shown)"
            )


def normal_endpoint(endpoint: str) -> str:
    """One spelling of an endpoint's URL. Raises OptionError for other text, without a password."""
    if "@" in endpoint:
        raise OptionError(
            "the endpoint must hold no credentials; use accessKeyId and secretAccessKey"
        )
    if "?" in endpoint or "#" in endpoint:
        raise OptionError("the endpoint must be a URL without ? and #: https://host:port")
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
        default = {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        host = None
    if not host:
        raise OptionError(
            f"endpoint must be a URL such as https://s3.example.com:9000, not {endpoint!r}"
        )
    if ":" in host:
        host = f"[{host}]"
    if port not in (None, default):
        host = f"{host}:{port}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def is_readable_on_the_way(endpoint: str) -> bool:
    """Whether an endpoint is on another machine and is spoken to without TLS."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


@dataclass(frozen=True)
class RetryPolicy:
    max_retry_attempts: int = 3
    base_delay_ms: int = 100
    max_delay_ms: int = 20_000

    def delay(self, attempt: int, rng: Callable[[], float], retry_after: float | None) -> float:
        """Seconds to wait after failed attempt `attempt` (1, 2, …).

        Full jitter: writers that failed together must not come back together. What the store asked
        for is a lower bound, up to LONGEST_WAIT: "tomorrow" must not stop a writer until then.
        """
        # 2^60 ms is beyond any cap; the bound keeps the power from growing without end.
        ceiling = min(self.max_delay_ms, self.base_delay_ms << min(attempt - 1, 60))
        return max(ceiling * rng() / 1000, min(retry_after or 0.0, LONGEST_WAIT))
