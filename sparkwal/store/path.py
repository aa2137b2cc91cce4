"""What a path names: a bucket and a prefix in it, or a folder. Opens nothing."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from sparkwal.errors import OptionError
from sparkwal.format.keys import join_key

_SCHEME = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)|(file|s3[an]?|https?|hdfs|gs|abfss?|dbfs):", re.IGNORECASE
)
_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_SUPPORTED = "supported are s3://bucket/folder, file:///folder and a plain folder path"


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
