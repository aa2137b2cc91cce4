"""What a path names: a bucket and a prefix in it, or a folder. Opens nothing."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkwal.errors import OptionError
from sparkwal.format.keys import join_key

_SCHEME = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)|(file|s3[an]?|https?|hdfs|gs|abfss?|dbfs):", re.IGNORECASE
)
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_SUPPORTED = "supported are s3://bucket/folder, file:///folder and a plain folder path"


# URLs of these stores name a container before the @: abfss://container@account.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")


def refuse_credentials(url: str, what: str) -> None:
    """Refuse a URL that may hold a secret: user info, a port that is none, a query or a fragment.

    Paths and URLs are written into logs, messages and metrics, so none may hold a secret. A secret
    with a "/" ends the part of a URL that holds user info, so what looks like a port may be half of
    it. The message shows nothing of the URL.

    Args:
        url: a URL; text without `scheme://` is a folder, and is accepted.
        what: names it in the message, for example "the table's URL".

    Raises:
        OptionError: the URL may hold a secret.
    """
    scheme, separator, _ = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "file":
        return
    try:
        parts = urlsplit(url.strip())
        user, _, _ = parts.netloc.rpartition("@")
        has_port = parts.port is not None
        more = bool(parts.query) or (bool(parts.fragment) and scheme not in ("s3", "s3a", "s3n"))
    except ValueError:
        # What stands for the port is no number: it may be the first half of a secret.
        user = ":"
        has_port = True
        more = False
    is_container = scheme in _CONTAINERS and ":" not in user
    if more or (user and not is_container) or (has_port and scheme in ("s3", "s3a", "s3n")):
        raise OptionError(
            f"{what} must hold no credentials, no query and, for s3, no port: it is written into "
            "logs. Give keys by options, by Spark's settings or by the environment"
        )


def is_local(path: str) -> bool:
    """Whether `path` is on a disk that other machines may not see."""
    return _scheme(path) == "file"


def absolute(path: str) -> str:
    """`path` so that a process with another working directory takes it for the same."""
    return str(folder(path)) if is_local(path) else path


def bucket_and_prefix(path: str) -> tuple[str, str]:
    """Of an s3:// path; the prefix ends with no "/". Raises OptionError for any other."""
    path = path.strip()
    scheme = _scheme(path)
    # Every message before the check for credentials leaves the path out.
    if scheme == "s3n":
        raise OptionError("s3n:// is no supported store; write s3://bucket/folder")
    if scheme not in ("s3", "s3a"):
        raise OptionError(f"{scheme} is no supported store; {_SUPPORTED}")
    _, separator, rest = path.partition("://")
    bucket, _, prefix = rest.partition("/")
    if bucket.startswith("arn:"):
        raise OptionError(
            "the path names an ARN: write the access point's alias, which ends with -s3alias, in "
            "place of the bucket (s3://alias/folder). A multi-Region access point cannot hold a "
            "log: its buckets do not see each other's writes at once"
        )
    refuse_credentials(path, "the path")
    if "@" in bucket or ":" in bucket:
        raise OptionError(
            "the path must hold no credentials and no port: write s3://bucket/folder, and give "
            "keys with accessKeyId and secretAccessKey, a server with endpoint"
        )
    if not separator or not bucket:
        raise OptionError("the path names no bucket; paths look like s3://bucket/folder")
    prefix = prefix.rstrip("/")
    return bucket, join_key(prefix) if prefix else ""


def folder(path: str) -> Path:
    """Of a local path, absolute. Raises OptionError for the disk of another machine."""
    path = path.strip()
    if not path:
        raise OptionError(f"the path is empty; {_SUPPORTED}")
    if _SCHEME.match(path):
        # file:/x and file:///x are the same; file://x/y names another machine.
        rest = path.partition(":")[2]
        if rest.startswith("//"):
            host, slash, tail = rest[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                named = "***" if "@" in host or ":" in host else host
                raise OptionError(f"the path names the host {named!r}; use file:///folder")
            rest = "/" + tail
        path = rest
    if "\0" in path:
        raise OptionError("the path has a zero byte in it; correct it")
    return Path(os.path.abspath(path))


def check_spelling(path: str) -> None:
    """Check the path of a log. Raises what `folder` or `bucket_and_prefix` raises, and OptionError
    for a file: URL such as Python's `Path.as_uri()`, which Spark would read as it stands."""
    if not is_local(path):
        bucket_and_prefix(path)
        return
    named = folder(path)
    if _SCHEME.match(path.strip()) and _ENCODED.search(str(named)):
        raise OptionError(
            f"{path} looks percent-encoded, and a file: path is read as it stands: write the "
            f"folder without file:, either {unquote(str(named))} or {named}"
        )


def state_folder() -> Path | None:
    """What this library keeps for this user on this machine; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        root = Path(state).absolute() if state else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return root / "sparkwal"


def _scheme(path: str) -> str:
    match = _SCHEME.match(path.strip())
    return (match[1] or match[2]).lower() if match else "file"


def overlap(one: str, other: str) -> bool:
    """Whether one path is in the other, or both are one. Links are followed; s3a:// is s3://."""
    pairs = zip(_place(one), _place(other), strict=False)
    return all(first == second for first, second in pairs)


def _place(path: str) -> list[str]:
    """What a path leads through, from the top."""
    if is_local(path):
        return ["file", *Path(os.path.realpath(folder(path))).parts]
    scheme, rest = _scheme(path), path.strip().partition(":")[2]
    return ["s3" if scheme in ("s3a", "s3n") else scheme, *filter(None, rest.split("/"))]
