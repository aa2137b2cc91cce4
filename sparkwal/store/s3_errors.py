"""What an S3 request's failure means: try again, or change something first."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import NotFound, Refusal, Transient


# Callers that expect these answers catch them. To any other request they mean: no S3 store.
class KeyTaken(OptionError):
    """The conditional write found its key taken (412)."""


class UploadGone(OptionError):
    """The multipart upload is not there any more: completed or aborted."""


class BeyondEnd(OptionError):
    """The range begins at the object's end or after it (416)."""


class Unanswered(Transient):
    """A 404 without S3's own code: who answers does not know whether there is an object."""


class Denied(Refusal):
    """A permission is missing (403), or the credentials are refused."""


# Codes that pass although their status says that the request is at fault.
_PASSING = {
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
    # Of a part that was sent twice, under KMS: the repeated Complete has the newest ETags.
    "InvalidPart",
}

# Of an object, on AWS.
MOST_PARTS = 10_000
MOST_PARTS_ADVICE = f"an object has at most {MOST_PARTS:,} parts: use more, smaller partitions"
_VIRTUAL = "set the option addressingStyle to virtual: the bucket's name goes into the host's name"
_KEYS = "check the options accessKeyId, secretAccessKey and sessionToken, or the profile"
_EXPIRED = (
    "the credentials expired; renew them and run again. Keys given as options are never read "
    "again, those of a profile are"
)
_HTTPS = "; if it speaks TLS, write https:// in the endpoint"
_REGION = "set the option region to the bucket's region"
# What a server says of credentials that were good once.
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
    # Without a body: no S3 server.
    "400": f"check that the endpoint is an S3 endpoint{_HTTPS}",
    "NoSuchBucket": "create the bucket, or correct the path or the endpoint",
    "InvalidBucketName": "correct the bucket's name in the path",
    "AccessDenied": (
        "allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, "
        "s3:ListBucketMultipartUploads and s3:ListBucket on it (without s3:ListBucket a missing "
        "object is refused too); sparkwal help security has a policy for each role"
    ),
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
    403: _ADVICE["AccessDenied"],
    404: "check that the endpoint is an S3 endpoint and that the bucket exists",
    501: _ADVICE["NotImplemented"],
}

# Of Python, and of urllib3, which looks at the name itself.
_ANOTHERS_NAME = ("mismatch", "doesn't match", "not valid for")
_NO_TLS = ("wrong_version_number", "record layer failure", "unknown_protocol", "http_request")


def credentials_refused(error: Exception) -> bool:
    """Whether other credentials may do what these did not."""
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
        said = str(error).lower()
        if any(each in said for each in ("certificate", *_ANOTHERS_NAME)):
            advice = "correct the endpoint, or point AWS_CA_BUNDLE at its certificate authority"
            if "expired" in said or "not yet valid" in said:
                advice = "renew the certificate, or set this machine's clock"
            elif any(each in said for each in _ANOTHERS_NAME):
                advice = "write a name in the endpoint that the certificate is made for"
            return OptionError(
                f"{url}: the endpoint's certificate was not accepted ({text(error)}); {advice}"
            )
        if any(each in said for each in _NO_TLS):
            return OptionError(f"{url} speaks no TLS: write http:// in the endpoint")
    unreachable = boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError
    if isinstance(error, unreachable):
        return Transient(text(error), unreachable=True)
    passing = (
        boto.HTTPClientError,
        boto.ConnectionError,
        boto.IncompleteReadError,
        boto.CredentialRetrievalError,
        boto.MetadataRetrievalError,
        ResponseParserError,
        HTTPError,
        OSError,
    )
    if isinstance(error, passing):
        # http.client shows the header that it refuses, which may be a session token.
        reason = re.sub(r"(?s)Invalid header value.*", "a header has a wrong character", str(error))
        said = f"{type(error).__name__}: {reason}"
        # So does a server that speaks TLS, and another one that ends.
        wants_tls = isinstance(error, boto.ConnectionClosedError) and url.startswith("http:")
        return Transient(text(said) + _HTTPS * wants_tls)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return OptionError(
            f"{url}: no credentials were found; set the options accessKeyId and "
            "secretAccessKey, or profile, or the AWS_… environment variables"
        )
    if isinstance(error, boto.BotoCoreError | ValueError):
        return OptionError(f"{url}: {text(error)}; correct the path or the store's options")
    return None


def not_deleted(errors: Iterable[Any], url: str, secrets: Sequence[str]) -> Exception | None:
    """The error for the first key that one DeleteObjects could not delete; None where all are gone,
    or are somebody's new objects. What no attempt would mend goes before what may pass."""
    text = partial(_shown, secrets)
    found = (_answered({"Error": each}, each.get("Key", ""), url, text) for each in errors)
    failures = [each for each in found if not isinstance(each, NotFound | KeyTaken)]
    return min(failures, key=lambda each: isinstance(each, Transient), default=None)


def _shown(secrets: Sequence[str], value: object) -> str:
    shown = " ".join(str(value).split())
    for secret in secrets:
        shown = shown.replace(secret, "***")
    return shown[:500]


def _answered(
    response: Any, key: str, url: str, text: Callable[[object], str], operation: str = ""
) -> Exception:
    details = response.get("Error", {})
    meta = response.get("ResponseMetadata", {})
    headers = meta.get("HTTPHeaders", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(details.get("Code", "")) or str(status)
    unasked = f"{url} answers {status} where S3 never does; check that it is an S3 endpoint"
    if status == 412 or code == "PreconditionFailed":
        return KeyTaken(unasked)
    if status == 416 or code == "InvalidRange":
        return BeyondEnd(unasked)
    if code == "NoSuchUpload":
        return UploadGone(unasked)
    # The answer to a HEAD has no body, and so no code.
    if code == "NoSuchKey" or (code == "404" and operation == "HeadObject"):
        return NotFound(key)
    if code == "404":
        return Unanswered(f"a 404 that does not name NoSuchKey; {unasked}")
    # One of the keys of a DeleteObjects has no status.
    what = status or f"delete of {key}:"
    said = text(f"{what} {code}: {details.get('Message', '')}".rstrip(": "))
    # 501 is a 5xx that no second attempt mends.
    if code in _PASSING or status in (408, 409, 429) or (status >= 500 and status != 501):
        return Transient(said, retry_after=_retry_after(headers.get("retry-after")))
    advice = _ADVICE.get(code) or _BY_STATUS.get(status)
    if operation == "UploadPart" and code == "InvalidArgument":
        advice = MOST_PARTS_ADVICE
    if advice is None:
        advice = "correct the path or the store's options"
    elif advice == _REGION and headers.get("x-amz-bucket-region"):
        advice += f" ({text(headers['x-amz-bucket-region'])})"
    refusal: type[OptionError] = OptionError
    if status == 403:
        refusal = Denied
    elif status in (401, 404) or code in _STALE:
        refusal = Refusal
    return refusal(f"{url} refused the request ({said}); {advice}")


def _retry_after(value: str | None) -> float | None:
    """Seconds, from either form that HTTP allows; None for what is neither."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().parse_retry_after(value) if value else None
    except (InvalidHeader, ValueError, OverflowError):
        return None
