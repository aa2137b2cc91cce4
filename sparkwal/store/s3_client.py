"""One S3 client per process and configuration, and how it differs from botocore's defaults."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import os
import re
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkwal.store import s3_get, s3_replies
from sparkwal.store.config import S3Config, check_keys

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


class _Made(NamedTuple):
    client: S3Client
    credentials: Any


# Each may hold as many connections as its store has.
_MOST = 8
_clients: dict[S3Config, _Made] = {}
_clients_lock = threading.Lock()


def _forget_parent() -> None:
    # No thread of the child would release a lock that was held at the fork; and two processes on
    # one socket would read each other's replies.
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_parent)


def s3_client(config: S3Config) -> S3Client:
    """This process's client for `config`: a new one costs tens of milliseconds."""
    return _made(config).client


def _made(config: S3Config) -> _Made:
    made = _clients.get(config)
    if made is None:
        with _clients_lock:
            made = _clients.get(config) or _new_client(config)
            _clients[config] = made
            # A process that is given new keys every hour would keep all their clients.
            if len(_clients) > _MOST:
                # Who still uses the oldest finds it closed, and connects anew.
                _clients.pop(next(iter(_clients))).client.close()
    return made


def provider(config: S3Config) -> str | None:
    """Which of botocore's providers the credentials come from ("env", "iam-role", …; "explicit":
    from options), or None where there are none. Never a value."""
    found = _made(config).credentials
    return str(found.method) if found else None


def renew(config: S3Config, refused: S3Client) -> bool:
    """Read the credentials again for a client whose own were refused. True: `s3_client` now gives
    another client, with other credentials. False: they are the same, or options gave them."""
    if config.access_key_id is not None:
        return False
    with _clients_lock:
        known = _clients.get(config)
        if known is None or known.client is not refused:
            # Another thread was here before.
            return True
        # A new session: the old one never looks into its files and environment again.
        fresh = _new_client(config)
        if _frozen(fresh) == _frozen(known):
            return False
        _clients[config] = fresh
        return True


def _frozen(made: _Made) -> object:
    return made.credentials and made.credentials.get_frozen_credentials()


@lru_cache
def descriptions() -> Any:
    """botocore's of the stores: it reads them anew for each session, in 0.07 s of CPU."""
    from botocore.session import Session

    return Session().get_component("data_loader")


def _new_client(config: S3Config) -> _Made:
    # boto3's session asks this one for everything, and costs each worker of Spark 0.1 s more.
    from botocore.config import Config
    from botocore.credentials import Credentials
    from botocore.session import Session

    _conceal(config.secrets)
    session = Session(profile=config.profile)
    session.register_component("data_loader", descriptions())
    if config.access_key_id is not None and config.secret_access_key is not None:
        session.set_credentials(
            config.access_key_id, config.secret_access_key, config.session_token
        )
    region = config.region or session.get_config_variable("region")
    configured: Any = (session.get_config_variable("s3") or {}).get("addressing_style")
    style: Any = config.addressing_style or configured or ("path" if config.endpoint else None)
    client: Any = session.create_client(
        "s3",
        endpoint_url=config.endpoint,
        # Other stores ignore the region, but the signature needs one.
        region_name=region or ("us-east-1" if config.endpoint else None),
        config=Config(
            # RetryingStore retries: it knows that after a lost reply a refusal may mean our own.
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=config.max_pool_connections,
            connect_timeout=config.connect_timeout,
            read_timeout=config.read_timeout,
            tcp_keepalive=True,
            signature_version="s3v4",
            s3={"addressing_style": style} if style else {},
            # Newer checksums by default break older stores; signature and our own CRCs cover all.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    _conceal(config.secrets)
    client.meta.events.register_last("before-call.s3", _one_plain_request)
    client.meta.events.register_last("before-call.s3.DeleteObjects", _with_md5)
    # This pattern runs before botocore's own check of the body.
    client.meta.events.register_first("before-parse.*.*", _keys_and_sizes)
    s3_get.listen(client)
    s3_replies.listen(client)
    credentials = session.get_credentials()
    if type(credentials) is Credentials:
        # From the environment or a file; those of a role are read with the first request.
        check_keys(credentials.access_key, credentials.secret_key, credentials.token)
    return _Made(client, credentials)


def _one_plain_request(params: Any, context: Any, **_: object) -> None:
    # "Expect: 100-continue" would add a round trip to every commit.
    params["headers"].pop("Expect", None)
    # botocore would look for the bucket's region in every client; one clear error is cheaper.
    context.get("s3_redirect", {})["redirected"] = True


def _with_md5(params: Any, **_: object) -> None:
    # Older servers demand it here. A checksum, which botocore sends, is not enough for them.
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


_KEY, _SIZE = re.compile(rb"<Key>([^<]*)</Key>"), re.compile(rb"<Size>([0-9]+)</Size>")
_ETAG, _NEXT = re.compile(rb"<ETag>([^<]*)</ETag>"), re.compile(rb"</Contents>\s*<Contents>")


def _keys_and_sizes(
    operation_model: Any, response_dict: Any, customized_response_dict: Any, **others: object
) -> None:
    # For botocore to parse a LIST of 1000 keys costs more than the rest of a recovery. So the
    # entries are cut out here. It parses the rest, any other form, and a reply that breaks off.
    if operation_model.name != "ListObjectsV2" or response_dict["status_code"] != 200:
        return
    before, _, rest = response_dict["body"].partition(b"<Contents>")
    inside, _, after = rest.rpartition(b"</Contents>")
    # Nothing stands between two entries.
    count, left = len(_NEXT.findall(inside)) + 1, before + after
    keys, sizes, etags = (each.findall(inside) for each in (_KEY, _SIZE, _ETAG))
    etags = etags or [b""] * count
    # Entries in another form, such as with an XML prefix, must not pass for an empty log.
    if not len(keys) == len(sizes) == len(etags) == count or b"Contents" in left:
        return
    response_dict["body"] = left
    customized_response_dict["Contents"] = [
        {"Key": html.unescape(key.decode()), "Size": int(size), "ETag": etag.decode()}
        for key, size, etag in zip(keys, sizes, etags, strict=True)
    ]


# At DEBUG botocore logs each request whole: the token of temporary credentials, and signatures.
_LOGGERS = ("botocore", "urllib3")
# As a header, as an entry of a dict, in a canonical request, in http.client's error about a header;
# and the signature.
_SIGNED = re.compile(
    r"""(x-amz-security-token['"]?\s*[:=]\s*b?['"]?|[Ss]ignature=|(?<=Signature:\n)"""
    r"""|Invalid header value b?['"])[^\s'",]+""",
    re.IGNORECASE,
)
# Keys of test servers are words that stand everywhere.
_SHORTEST = 8
_secrets: frozenset[str] = frozenset()


def _concealing(record: logging.LogRecord) -> bool:
    """A filter that changes records and drops none."""
    said = record.getMessage()
    hidden = _SIGNED.sub(r"\1***", said)
    for secret in _secrets:
        hidden = hidden.replace(secret, "***")
    if hidden != said:
        record.msg, record.args = hidden, ()
    return True


def _conceal(secrets: Iterable[str]) -> None:
    """Keep these values, all tokens and all signatures out of what botocore logs in this process.
    Call it again once more of botocore was imported: a filter sees one logger's records only."""
    global _secrets
    _secrets |= {secret for secret in secrets if len(secret) >= _SHORTEST}
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _LOGGERS:
            logging.getLogger(name).addFilter(_concealing)
