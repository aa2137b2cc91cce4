"""Translates the failures of S3 requests: another attempt may succeed, or the user must act."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import NotFound, Refusal, Transient


# Methods that expect these answers catch them. After any other request they mean that the server is
# no S3 store.
class KeyTaken(Refusal):
    """The conditional write found its key taken (412)."""


class UploadGone(Refusal):
    """The multipart upload does not exist any more: it was completed or aborted."""


class BeyondEnd(Refusal):
    """The range begins at the object's end or after it (416)."""


class Unanswered(Transient):
    """A 404 or 416 without S3's own code: it proves nothing about the object."""


class Denied(Refusal):
    """A permission is missing (403), or the credentials are refused."""


# Codes of temporary failures, although their status means that the request is wrong.
_TEMPORARY = {
    "BadDigest",
    "ClientTokenConflict",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
    # Under KMS, a part that was sent twice gets a new ETag. A repeated Complete sends that one.
    "InvalidPart",
}

# The most parts of an object on AWS.
MOST_PARTS = 10_000
MOST_PARTS_ADVICE = f"an object has at most {MOST_PARTS:,} parts: use more, smaller partitions"
_VIRTUAL = "set the option addressingStyle to virtual: the bucket's name goes into the host's name"
_KEYS = "check the options accessKeyId, secretAccessKey and sessionToken, or the profile"
_EXPIRED = (
    "the credentials expired; renew them and run again. sparkwal reads the keys of a profile "
    "again, but not keys in options"
)
_HTTPS = "; if it speaks TLS, write https:// in the endpoint"
_REGION = "set the option region to the bucket's region"
# Codes for credentials that may have been valid before.
_STALE = {
    "InvalidAccessKeyId": _KEYS,
    "InvalidToken": _KEYS,
    "InvalidClientTokenId": _KEYS,
    "UnrecognizedClientException": _KEYS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
}
_ADVICE = {
    **_STALE,
    # A 400 without a code: the server is no S3 server.
    "400": f"check that the endpoint is an S3 endpoint{_HTTPS}",
    "NoSuchBucket": "create the bucket, or correct the path or the endpoint",
    "InvalidBucketName": "correct the bucket's name in the path",
    "SignatureDoesNotMatch": _KEYS,
    "PathStyleDomainForbidden": _VIRTUAL,
    "SecondLevelDomainForbidden": _VIRTUAL,
    "RequestTimeTooSkewed": "set this machine's clock",
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "NotImplemented": (
        "this store lacks what the log needs (conditional writes); use S3, MinIO, R2 or "
        "another store that honours If-None-Match"
    ),
    "EntityTooLarge": "use smaller batches, or a lower multipartThreshold",
    "EntityTooSmall": "use a larger part size (S3 wants at least 5 MiB)",
    "KeyTooLongError": "use a shorter path",
    "InvalidObjectState": "the object was archived; restore it, and keep logs out of archiving",
}
_BY_STATUS = {
    **dict.fromkeys((301, 307, 308), _REGION),
    401: _KEYS,
    404: "check that the endpoint is an S3 endpoint and that the bucket exists",
    501: _ADVICE["NotImplemented"],
}

# The permissions that operations need whose own names differ from them.
_ACTIONS = {
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "HeadObject": "GetObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectsV2": "ListBucket",
    "UploadPart": "PutObject",
}
# AWS names the action in the message of most refusals.
_NAMED_ACTION = re.compile(r"not authorized to perform: (\w+:\w+)")

# Messages of Python and of urllib3 for a certificate with another host's name.
_WRONG_HOST = ("mismatch", "doesn't match", "not valid for")
_NO_TLS = ("wrong_version_number", "record layer failure", "unknown_protocol", "http_request")


def credentials_refused(error: Exception) -> bool:
    """Whether the server refused the credentials, so that others may be accepted."""
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError) and error.response["Error"].get("Code") in _STALE


def translate(error: Exception, key: str, url: str, secrets: Sequence[str]) -> Exception | None:
    """This library's error for `error`, without `secrets`, or None for a programming error."""
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    text = partial(_shown, secrets)
    if isinstance(error, boto.ClientError):
        return _answered(error.response, key, url, text, error.operation_name)
    if isinstance(error, boto.SSLError):
        message = str(error).lower()
        if any(phrase in message for phrase in ("certificate", *_WRONG_HOST)):
            advice = "correct the endpoint, or point AWS_CA_BUNDLE at its certificate authority"
            if "expired" in message or "not yet valid" in message:
                advice = "renew the certificate, or set this machine's clock"
            elif any(phrase in message for phrase in _WRONG_HOST):
                advice = "write a name in the endpoint that the certificate is made for"
            return OptionError(
                f"{url}: the endpoint's certificate was not accepted ({text(error)}); {advice}"
            )
        if any(phrase in message for phrase in _NO_TLS):
            return OptionError(f"{url} speaks no TLS: write http:// in the endpoint")
    unreachable = boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError
    if isinstance(error, unreachable):
        return Transient(text(error), unreachable=True)
    temporary = (
        boto.HTTPClientError,
        boto.ConnectionError,
        boto.IncompleteReadError,
        boto.CredentialRetrievalError,
        boto.MetadataRetrievalError,
        ResponseParserError,
        HTTPError,
        OSError,
    )
    if isinstance(error, temporary):
        # http.client shows the header that it refuses, which may be a session token.
        reason = re.sub(r"(?s)Invalid header value.*", "a header has a wrong character", str(error))
        message = text(f"{type(error).__name__}: {reason}")
        # A server with TLS closes the connection of a plain request. So does a server that stops.
        wants_tls = isinstance(error, boto.ConnectionClosedError) and url.startswith("http:")
        return Transient(message + _HTTPS * wants_tls)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return OptionError(
            f"{url}: no credentials were found; set the options accessKeyId and "
            "secretAccessKey, or profile, or the AWS_… environment variables"
        )
    if isinstance(error, boto.BotoCoreError | ValueError):
        return OptionError(f"{url}: {text(error)}; correct the path or the store's options")
    return None


def not_deleted(errors: Iterable[Any], url: str, secrets: Sequence[str]) -> Exception | None:
    """The error for one key that a DeleteObjects could not delete, a permanent one if there is one.

    Returns:
        The error, or None if each key is free, or has a new object with another ETag.
    """
    text = partial(_shown, secrets)
    results = (
        _answered({"Error": error}, error.get("Key", ""), url, text, "DeleteObjects")
        for error in errors
    )
    failures = [result for result in results if not isinstance(result, NotFound | KeyTaken)]
    return min(failures, key=lambda failure: isinstance(failure, Transient), default=None)


def is_kept(error: Any) -> bool:
    """Whether a DeleteObjects kept an object because its ETag is another one."""
    return error.get("Code") == "PreconditionFailed" and bool(error.get("Key"))


def _shown(secrets: Sequence[str], value: object) -> str:
    shown = " ".join(str(value).split())
    for secret in secrets:
        shown = shown.replace(secret, "***")
    return shown[:500]


def _answered(
    response: Any, key: str, url: str, text: Callable[[object], str], operation: str
) -> Exception:
    details = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    headers = meta.get("HTTPHeaders", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(details.get("Code", "")) or str(status)
    unexpected = f"{url} answers {status} where S3 never does; check that it is an S3 endpoint"
    if status == 412 or code == "PreconditionFailed":
        return KeyTaken(unexpected)
    if code == "InvalidRange":
        return BeyondEnd(unexpected)
    if status == 416:
        return Unanswered(f"a 416 that does not name InvalidRange; {unexpected}")
    if code == "NoSuchUpload":
        return UploadGone(unexpected)
    # The reply to a HEAD has no body, so it has no code.
    if code == "NoSuchKey" or (code == "404" and operation == "HeadObject"):
        return NotFound(key)
    if code == "404":
        return Unanswered(f"a 404 that does not name NoSuchKey; {unexpected}")
    # The error of one key of a DeleteObjects has no status.
    subject = status or f"delete of {key}:"
    message = text(f"{subject} {code}: {details.get('Message', '')}".rstrip(": "))
    # After 501, Not Implemented, another attempt cannot succeed.
    if code in _TEMPORARY or status in (408, 409, 429) or (status >= 500 and status != 501):
        return Transient(message, retry_after=_retry_after(headers.get("retry-after")))
    advice = _ADVICE.get(code) or _BY_STATUS.get(status)
    if advice is None and (status == 403 or code == "AccessDenied"):
        advice = _permission(operation, text(key), message)
    if operation == "UploadPart" and code == "InvalidArgument":
        advice = MOST_PARTS_ADVICE
    if advice is None:
        advice = "correct the path or the store's options"
    elif advice == _REGION and headers.get("x-amz-bucket-region"):
        advice += f" ({text(headers['x-amz-bucket-region'])})"
    refusal: type[OptionError] = OptionError
    if status == 403:
        refusal = Denied
    # A status without a code of S3, or a redirect, may come from a server in between.
    elif status in (401, 404) or code in _STALE or status < 400 or code == str(status):
        refusal = Refusal
    return refusal(f"{url} refused the request ({message}); {advice}")


def _permission(operation: str, key: str, message: str) -> str:
    """The advice after a request that was denied: the permission that it needs."""
    named = _NAMED_ACTION.search(message)
    action = named[1] if named else f"s3:{_ACTIONS.get(operation, operation)}"
    needed = f"{action} on {key or 'the bucket'}"
    if action == "s3:ListBucket":
        needed = f"{action} with the prefix {key}"
    elif not action.startswith("s3:"):
        # The message names its resource.
        needed = action
    elif operation in ("GetObject", "HeadObject") and not named:
        needed += ", and s3:ListBucket with this prefix: without it a missing object is refused too"
    return f"allow {needed}; sparkwal help security has a policy for each role"


def _retry_after(value: str | None) -> float | None:
    """Seconds, from one of the two forms that HTTP allows, or None for other text."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(value) if value else None
    except (InvalidHeader, ValueError, OverflowError):
        return None
