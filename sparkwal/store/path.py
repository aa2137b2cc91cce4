"""Parses paths. A path names a bucket and a prefix, or a folder."""

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
# What a shell or another system replaces: ~, a variable, a drive or a share of Windows.
_HOME = re.compile(r"~[^/\\]*")
_VARIABLE = re.compile(r"\$[A-Za-z_{(]|%[A-Za-z_]+%")
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|[A-Za-z]:$|\\\\")
# Where Databricks mounts its file systems. macOS mounts disks below /Volumes.
_MOUNTS = ("/dbfs", "/Volumes")
_SUPPORTED = (
    "supported are s3://bucket/folder, abfss://container@account.dfs.core.windows.net/folder, "
    "gs://bucket/folder, file:///folder and a plain folder path"
)
_S3 = ("s3", "s3a", "s3n")
_AZURE = ("abfs", "abfss", "az")
_KINDS = {**dict.fromkeys(_S3, "s3"), **dict.fromkeys(_AZURE, "azure"), "gs": "google"}


# In URLs of these schemes a container comes before the @: abfss://container@account.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")


def refuse_credentials(url: str, name: str) -> None:
    """Check that a URL has no secret: no user info, no wrong port, no query, no fragment.

    Paths and URLs appear in logs, messages and metrics, so they must not contain a secret. A secret
    with a "/" looks like a port and a path, so a port that is no number may be a part of one. The
    message shows no part of the URL.

    Args:
        url: a URL, or a folder, which is always accepted.
        name: the name of the URL in the message, for example "the table's URL".

    Raises:
        OptionError: the URL may contain a secret.
    """
    scheme, separator, _ = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "file":
        return
    try:
        parts = urlsplit(url.strip())
        user, _, _ = parts.netloc.rpartition("@")
        has_port = parts.port is not None
        is_s3 = scheme in _S3
        has_query = bool(parts.query) or (bool(parts.fragment) and not is_s3)
    except ValueError:
        # The port is no number: it may be the first half of a secret.
        is_s3 = False
        user = ":"
        has_port = True
        has_query = False
    is_container = scheme in _CONTAINERS and ":" not in user
    if has_query or (user and not is_container) or (has_port and is_s3):
        raise OptionError(
            f"{name} must hold no credentials, no query and, for s3, no port: it is written into "
            "logs. Give keys by options, by Spark's settings or by the environment"
        )


def is_local(path: str) -> bool:
    """Whether `path` is on this machine's disk, which other machines may not share."""
    return scheme_of(path) == "file"


def absolute(path: str) -> str:
    """`path` in a form that does not depend on the working directory."""
    if not is_local(path):
        return path
    check_meant(path)
    return str(folder(path))


def kind_of_store(path: str) -> str:
    """The kind of store: "s3", "azure" or "google" for each of their schemes, else the scheme."""
    scheme = scheme_of(path)
    return _KINDS.get(scheme, scheme)


def bucket_and_prefix(path: str) -> tuple[str, str]:
    """The bucket and the prefix, without a "/" at its end, of a path on an object store.

    In a path of a store in memory the store's name takes the place of the bucket, and on Azure the
    container, perhaps with its account.

    Raises:
        OptionError: the path is no valid path of a supported store.
    """
    path = path.strip()
    scheme = scheme_of(path)
    # Messages before the check for credentials must not show the path.
    if scheme == "s3n":
        raise OptionError("s3n:// is no supported store; write s3://bucket/folder")
    if scheme in ("wasb", "wasbs"):
        raise OptionError(
            f"{scheme}:// is no supported store; write "
            "abfss://container@account.dfs.core.windows.net/folder"
        )
    if scheme != "memory" and scheme not in _KINDS:
        raise OptionError(f"{scheme} is no supported store; {_SUPPORTED}")
    _, separator, location = path.partition("://")
    bucket, _, prefix = location.partition("/")
    if bucket.startswith("arn:"):
        raise OptionError(
            "the path names an ARN: write the access point's alias, which ends with -s3alias, in "
            "place of the bucket (s3://alias/folder). A multi-Region access point cannot hold a "
            "log: its buckets do not see each other's writes at once"
        )
    refuse_credentials(path, "the path")
    if ("@" in bucket and scheme not in _AZURE) or ":" in bucket:
        raise OptionError(
            "the path must hold no credentials and no port: write s3://bucket/folder, and give "
            "keys with accessKeyId and secretAccessKey, a server with endpoint"
        )
    if not separator or not bucket:
        raise OptionError("the path names no bucket; paths look like s3://bucket/folder")
    prefix = prefix.rstrip("/")
    return bucket, join_key(prefix) if prefix else ""


def folder(path: str) -> Path:
    """The absolute folder of a local path.

    Raises:
        OptionError: the path names another machine, is empty, or has a zero byte.
    """
    path = path.strip()
    if not path:
        raise OptionError(f"the path is empty; {_SUPPORTED}")
    if _SCHEME.match(path):
        path = _without_scheme(path)
    if "\0" in path:
        raise OptionError("the path has a zero byte in it; correct it")
    return Path(os.path.abspath(path))


def _without_scheme(path: str) -> str:
    """The folder of a file: URL. file:/x and file:///x are the same.

    Raises:
        OptionError: it names another machine, as file://x/y does, or no folder.
    """
    location = path.partition(":")[2]
    if location.startswith("//"):
        host, slash, tail = location[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            shown = "***" if "@" in host or ":" in host else host
            raise OptionError(f"the path names the host {shown!r}; use file:///folder")
        return "/" + tail
    if not location:
        raise OptionError("the path names no folder; use file:///folder")
    return location


def check_meant(path: str) -> None:
    """Check that a local path is no name that a shell or another system replaces.

    Such a name would become a new folder, and the rows in it would be where nobody looks.

    Raises:
        OptionError: it is one, or `folder` refuses it.
    """
    path = path.strip()
    typed = _without_scheme(path) if _SCHEME.match(path) else path
    literal = f"For a folder of that name write ./{typed}"
    if home := _HOME.match(typed):
        full = os.path.expanduser(typed)
        advice = f"write {full}" if full != typed else "write the whole path"
        raise OptionError(
            f"the path {typed} begins with {home[0]}, which only a shell replaces: {advice}. "
            f"{literal}"
        )
    if _VARIABLE.match(typed):
        raise OptionError(
            f"the path {typed} begins with a variable, which only a shell replaces: write its "
            f"value. {literal}"
        )
    if os.name != "nt" and _WINDOWS.match(typed):
        raise OptionError(
            f"the path {typed} is a path of Windows, and this machine has no such disk: write "
            f"/folder. {literal}"
        )
    plain = folder(path)
    for mount in _MOUNTS:
        if plain.is_relative_to(mount) and not os.path.isdir(mount):
            raise OptionError(
                f"the path {typed} is below {mount}, where Databricks mounts its files, and this "
                f"machine has no {mount}: write s3://bucket/folder, or a folder of this machine"
            )


def check_spelling(path: str) -> None:
    """Check the path of a log.

    Raises:
        OptionError: as for `folder` or `bucket_and_prefix`; or it is a percent-encoded file: URL,
            such as Python's `Path.as_uri()`, which Spark would not decode.
    """
    if not is_local(path):
        bucket_and_prefix(path)
        return
    check_meant(path)
    plain = folder(path)
    if _SCHEME.match(path.strip()) and _ENCODED.search(str(plain)):
        raise OptionError(
            f"{path} looks percent-encoded, and a file: path is not decoded: write the folder "
            f"without file:, either {unquote(str(plain))} or {plain}"
        )


def state_folder() -> Path | None:
    """This library's folder for this user on this machine, or None if the user has no home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        root = Path(state).absolute() if state else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return root / "sparkwal"


def scheme_of(path: str) -> str:
    """The scheme of a URL in lower case; "file" for a folder."""
    match = _SCHEME.match(path.strip())
    return (match[1] or match[2]).lower() if match else "file"


def overlap(one: str, other: str) -> bool:
    """Whether the paths are equal, or one contains the other.

    Symbolic links are followed, and s3a:// equals s3://. A container of Azure counts as the same
    in each account, because az:// names none.
    """
    pairs = zip(_components(one), _components(other), strict=False)
    return all(first == second for first, second in pairs)


def _components(path: str) -> list[str]:
    """The scheme of a path and its folders, from the top."""
    if is_local(path):
        return ["file", *Path(os.path.realpath(folder(path))).parts]
    kind, location = kind_of_store(path), path.strip().partition(":")[2]
    names = [*filter(None, location.split("/"))]
    if kind == "azure":
        names[:1] = [name.partition("@")[0] for name in names[:1]]
    return [kind, *names]
