"""How S3 is reached: the configuration, and one client per process for each."""

from __future__ import annotations

import html
import os
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from sparkwal.errors import OptionError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_AWS_HOST = re.compile(r"s3([.-][a-z0-9-]+)*\.amazonaws\.com")


@dataclass(frozen=True)
class S3Config:
    """How to reach S3. What is None comes from the environment, as with any AWS tool.

    Raises OptionError for an endpoint that is no http(s) URL and for half a pair of keys.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    max_pool_connections: int = 100
    connect_timeout: float = 5.0
    read_timeout: float = 60.0
    max_in_flight_parts: int = 4

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            check_endpoint(self.endpoint)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise OptionError("accessKeyId and secretAccessKey go together: set both or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise OptionError("sessionToken needs accessKeyId and secretAccessKey")
        for name in ("max_pool_connections", "max_in_flight_parts"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no message may show."""
        values = (self.access_key_id, self.secret_access_key, self.session_token)
        return tuple(value for value in values if value)


def check_endpoint(endpoint: str) -> None:
    """Raises OptionError for what is no plain http(s) URL; never shows a password in it."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        usable = False
        parts = urlsplit("")
    # Before anything shows the endpoint: a password in it would end up in messages.
    if "@" in endpoint:
        raise OptionError(
            "the option endpoint must hold no credentials; use accessKeyId and secretAccessKey"
        )
    if not usable or parts.query or parts.fragment:
        raise OptionError(
            f"endpoint must be a URL such as https://s3.example.com:9000, not {endpoint!r}"
        )


def normal_endpoint(endpoint: str) -> str:
    """One spelling of an endpoint's URL. Raises OptionError as `check_endpoint`."""
    check_endpoint(endpoint)
    parts = urlsplit(endpoint)
    host = str(parts.hostname)
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in (None, {"http": 80, "https": 443}[parts.scheme]):
        host = f"{host}:{parts.port}"
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def is_aws(endpoint: str) -> bool:
    """Whether an endpoint is one of AWS's own: of a region, dual-stack, FIPS."""
    return _AWS_HOST.fullmatch(urlsplit(endpoint).hostname or "") is not None


_clients: dict[tuple[int, str | None, S3Config], S3Client] = {}
_clients_lock = threading.Lock()


def _forget_parent() -> None:
    # Another thread may have held the lock at the fork, and nobody in the child would
    # ever release it. The parent's clients go too: two processes on one socket would
    # read each other's replies.
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_parent)


def s3_client(config: S3Config, endpoint: str | None) -> S3Client:
    """This process's client for `config`: a new one costs tens of milliseconds."""
    key = (os.getpid(), endpoint, config)
    client = _clients.get(key)
    if client is None:
        with _clients_lock:
            client = _clients.get(key) or _new_client(config, endpoint)
            _clients[key] = client
    return client


def _new_client(config: S3Config, endpoint: str | None) -> S3Client:
    # Without boto3 around it: a worker that begins is ready a quarter sooner.
    from botocore.config import Config
    from botocore.session import Session

    session = Session(profile=config.profile)
    if config.access_key_id is not None and config.secret_access_key is not None:
        session.set_credentials(
            config.access_key_id, config.secret_access_key, config.session_token
        )
    region = config.region or session.get_config_variable("region")
    client: Any = session.create_client(
        "s3",
        endpoint_url=endpoint,
        # Other stores ignore the region, but the signature needs one.
        region_name=region or ("us-east-1" if endpoint else None),
        config=Config(
            # The retry decorator is the only one who retries: it alone knows that a
            # refusal after a lost reply may be our own object.
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=config.max_pool_connections,
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            tcp_keepalive=True,
            signature_version="s3v4",
            s3={"addressing_style": "path"} if endpoint else {},
            # Newer checksums by default break older S3-compatible stores; the signed
            # payload and our own CRCs cover the content.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    client.meta.events.register_last("before-call.s3", _one_plain_request)
    # This pattern comes before the library's own check of every body.
    client.meta.events.register_first("before-parse.*.*", _keys_and_sizes)
    return cast("S3Client", client)


def _one_plain_request(params: Any, context: Any, **_: object) -> None:
    # "Expect: 100-continue" would add a round trip to every commit.
    params["headers"].pop("Expect", None)
    # The library would look for the bucket's region with a HEAD and send the request
    # again, on every client of every worker; a clear error once is cheaper.
    context.get("s3_redirect", {})["redirected"] = True


def _keys_and_sizes(
    operation_model: Any,
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_: object,
) -> None:
    # Decoded by the library a LIST of 1000 keys costs more than all else in a recovery: it
    # parses the whole twice, and every time, tag and owner. What does not look right is left
    # to it, and what is left after the entries, so a reply that breaks off is found as ever.
    if operation_model.name != "ListObjectsV2" or response_dict["status_code"] != 200:
        return
    before, *entries = response_dict["body"].split(b"<Contents>")
    contents: list[dict[str, Any]] = []
    rest: list[bytes] = [before]
    try:
        for entry in entries:
            inside, behind = _cut(entry, b"</Contents>")
            key = _cut(_cut(inside, b"<Key>")[1], b"</Key>")[0]
            size = _cut(_cut(inside, b"<Size>")[1], b"</Size>")[0]
            if b"<" in key:
                return
            contents.append({"Key": html.unescape(key.decode()), "Size": int(size)})
            rest.append(behind)
    except ValueError:
        return
    left = b"".join(rest)
    # Entries written in other words, with a prefix for example, are no empty log.
    if b"Contents" in left:
        return
    response_dict["body"] = left
    customized_response_dict["Contents"] = contents


def _cut(text: bytes, at: bytes) -> tuple[bytes, bytes]:
    before, found, behind = text.partition(at)
    if not found:
        raise ValueError(f"no {at!r}")
    return before, behind
