"""The configuration of a store's requests and retries: values that are checked when created."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from isal.isal_zlib import crc32

from sparkwal.errors import OptionError

# The longest wait between two attempts that a store may ask for, in seconds.
LONGEST_WAIT = 60.0


def without_none(**parameters: Any) -> dict[str, Any]:
    """The parameters whose values are not None."""
    return {name: value for name, value in parameters.items() if value is not None}


@dataclass(frozen=True)
class S3Config:
    """The address, the credentials and the parameters of S3 requests.

    If a value is None, the environment or the bucket's configuration decides.

    Raises:
        OptionError: the endpoint is no http(s) URL, or a part of the credentials is missing.
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
    def common_parameters(self) -> dict[str, Any]:
        """Parameters of every request."""
        return without_none(
            RequestPayer="requester" if self.requester_pays else None,
            ExpectedBucketOwner=self.bucket_owner,
        )

    @property
    def creation_parameters(self) -> dict[str, Any]:
        """Parameters of the request that begins an object: a PUT, or CreateMultipartUpload."""
        encryption = "AES256" if self.encryption == "aes256" else self.encryption
        return self.common_parameters | without_none(
            ServerSideEncryption=encryption,
            SSEKMSKeyId=self.kms_key_id,
            BucketKeyEnabled=self.bucket_key,
            StorageClass=self.storage_class.upper() if self.storage_class else None,
        )

    def checksum_parameters(self, body: bytes) -> dict[str, str]:
        """Parameters of a request that sends `body`."""
        if not self.checksum:
            return {}
        return {"ChecksumCRC32": base64.b64encode(crc32(body).to_bytes(4, "big")).decode()}


def check_keys(*keys: str | None) -> None:
    """Check that credentials can be sent in a header. http.client's error would show them.

    Args:
        keys: an access key id, a secret access key and a session token.

    Raises:
        OptionError: a key has a forbidden character. The message does not show the key.
    """
    for name, key in zip(("accessKeyId", "secretAccessKey", "sessionToken"), keys, strict=True):
        if key is not None and not all("!" <= character <= "~" for character in key):
            raise OptionError(
                f"{name} has a character that no key has, such as a space or a line end: correct "
                "it at its source. (The value is not shown)"
            )


def normal_endpoint(endpoint: str) -> str:
    """The one spelling of an endpoint's URL.

    Raises:
        OptionError: the endpoint is no http(s) URL, or has credentials, which are not shown.
    """
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


def is_unencrypted(endpoint: str) -> bool:
    """Whether requests to an endpoint cross a network without TLS."""
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

        The jitter is full: writers that failed together must not retry together. The wait that the
        store asked for (`retry_after`) is a lower bound, up to LONGEST_WAIT.
        """
        # The bound 60 keeps the power small; 2^60 ms is beyond any maximum.
        ceiling = min(self.max_delay_ms, self.base_delay_ms << min(attempt - 1, 60))
        return max(ceiling * rng() / 1000, min(retry_after or 0.0, LONGEST_WAIT))
