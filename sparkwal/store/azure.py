"""A container of Azure Blob Storage, as a `Store`."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal
from urllib.parse import quote, unquote
from xml.etree import ElementTree

from sparkwal.errors import OptionError
from sparkwal.store import rest
from sparkwal.store.azure_account import TOKEN, account_of
from sparkwal.store.base import (
    Entry,
    Folders,
    Front,
    NotFound,
    Page,
    Refusal,
    Tagged,
    Transient,
    Unfinished,
    UnfinishedPage,
)
from sparkwal.store.config import S3Config
from sparkwal.store.rest import Listed, Reply, Request
from sparkwal.store.s3_errors import BeyondEnd, Denied, KeyTaken, Unanswered
from sparkwal.store.s3_get import SentObject
from sparkwal.store.s3_replies import Unproven

_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
# The version of a LIST with startFrom. More servers have that of the other requests.
_START_FROM = {"x-ms-version": "2026-02-06"}
_LARGEST_PAGE = 5000
_ABSENT = {"If-None-Match": "*"}
# Between a key and a marker; no name of an object has it.
_MARKER = "\0"
_ROLE = "give the role Storage Blob Data Contributor (a reader: Reader) at the container"
_ADVICE = {
    "AuthenticationFailed": "check the account's key or the signature (SAS), and this machine's "
    "clock",
    "AuthorizationFailure": "allow this network in the account's firewall, or the action in the "
    "signature (SAS)",
    "AuthorizationPermissionMismatch": _ROLE,
    "AuthorizationResourceTypeMismatch": "let the signature (SAS) cover containers and objects",
    "ContainerNotFound": "create the container, or correct the path",
    "ContainerBeingDeleted": "wait until it is deleted, and create it again",
    "InsufficientAccountPermissions": _ROLE,
    "InvalidResourceName": "correct the container's name in the path",
    "KeyBasedAuthenticationNotPermitted": "the account allows no key: remove it, and use an "
    "identity",
    "RequestBodyTooLarge": "one request has at most 5,000 MiB: use more, smaller partitions",
    "BlockCountExceedsLimit": "an object has at most 50,000 blocks: use more, smaller partitions",
    "BlobArchived": "the object was archived; rehydrate it, and keep logs out of archiving",
    "BlobImmutableDueToPolicy": "an immutability policy holds the object until its time ends",
}
# Codes of replies with 400 or 409 after which a request may succeed the next time.
_TEMPORARY = ("Md5Mismatch", "IncompleteBody", "OperationTimedOut", "InternalError", "ServerBusy")
_CODE = re.compile(rb"<Code>([A-Za-z0-9]+)</Code>")
_MESSAGE = re.compile(rb"<Message>([^<\r\n]*)")


class AzureStore:
    """One container; each method makes one attempt.

    The store holds no connection itself, so it can be forked and pickled.

    Args:
        place: the container, or container@account.dfs.core.windows.net.
        config: endpoint, accessKeyId (the account), secretAccessKey (its key), the timeouts and the
            number of connections. The other values are S3's.

    Raises:
        OptionError: the container cannot hold a log, or the account is unknown.
    """

    def __init__(self, authority: str, config: S3Config) -> None:
        self._account, self.container = account_of(authority, config)
        if not _CONTAINER.fullmatch(self.container):
            raise OptionError(
                f"{self.container!r} is no name of a container; paths look like "
                "abfss://container@account.dfs.core.windows.net/folder"
            )
        self.config = config
        self.endpoint = config.endpoint
        self.url = self.identity = self._account.url.format(self.container)
        self.concurrency = config.max_pool_connections
        self.retries = 0
        # Whether the server begins a LIST at a name: None until a page showed it.
        self._begins_at: bool | None = None

    def credentials(self) -> str:
        """Where the credentials come from. See `Account.credentials`."""
        return self._account.credentials()

    def _send(
        self,
        method: str,
        key: str = "",
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        body: bytes = b"",
        *,
        of_account: bool = False,
    ) -> Reply:
        """Send one request to the container, an object of it or the account.

        Returns:
            The reply, if its status is below 300.

        Raises:
            KeyTaken: the condition of a write does not hold.
            NotFound: there is no such object.
            BeyondEnd: the range begins after the object's end.
        """
        url = f"{self._account.blobs}/" if of_account else self._url(key)
        if body:
            md5 = hashlib.md5(body, usedforsecurity=False).digest()
            headers = {**headers, "Content-MD5": base64.b64encode(md5).decode()}
        request = Request(method, url, query, headers, body)
        reply = rest.send(request, self.config, self._account.sign)
        if reply.status >= 300:
            raise self._failure(reply, key)
        # Azure gives each request an id; a page of a proxy has none.
        reply.header("x-ms-request-id")
        return reply

    def _url(self, key: str) -> str:
        url = f"{self._account.blobs}/{self.container}"
        return f"{url}/{quote(key, safe='/~')}" if key else url

    def _failure(self, reply: Reply, key: str) -> Exception:
        named = _CODE.search(reply.body)
        code = reply.headers.get("x-ms-error-code") or (named[1].decode() if named else "")
        detail = _MESSAGE.search(reply.body)
        text = detail[1].decode(errors="replace")[:300] if detail else ""
        message = " ".join(f"{reply.status} {code} {text}".split())
        unexpected = f"{self.url} answers {message} where Azure never does; check the endpoint"
        match reply.status, code:
            case (409, "BlobAlreadyExists") | (412, "ConditionNotMet" | "TargetConditionNotMet"):
                return KeyTaken(unexpected)
            case 416, "InvalidRange":
                return BeyondEnd(unexpected)
            case 404, "BlobNotFound":
                return NotFound(key)
            case ((404 | 416), ""):
                return Unanswered(f"a {reply.status} without a code of Azure; {unexpected}")
        is_unknown_conflict = reply.status == 409 and code not in _ADVICE
        if is_unknown_conflict or code in _TEMPORARY or reply.status in rest.TEMPORARY:
            return Transient(message, retry_after=rest.retry_after(reply))
        if reply.status == 401:
            TOKEN.forget()
        advice = _ADVICE.get(code, "correct the path, the endpoint or the credentials")
        refusal: type[OptionError] = OptionError
        if code == "InvalidBlockList":
            refusal = _BlocksGone
        elif reply.status == 403:
            refusal = Denied
        elif reply.status in (401, 404) or reply.status < 400 or not code:
            refusal = Refusal
        return refusal(f"{self.url} refused the request ({message}); {advice}")

    def put_if_absent(self, key: str, body: bytes) -> bool:
        try:
            self.put(key, body, _ABSENT)
        except KeyTaken:
            return self._past_blocks(key, body)
        return True

    def _past_blocks(self, key: str, body: bytes) -> bool:
        """Create an object at a key that was refused: perhaps it has only blocks of an upload.

        The blocks of a killed writer stay for a week. With them Azurite refuses a PUT, though no
        GET finds an object; a list of blocks it takes, and forgets the others.
        """
        try:
            self.head(key)
        except NotFound:
            upload = self.upload(key)
            upload.part(1, 0, body)
            return upload.complete()
        return False

    def put(self, key: str, body: bytes, condition: Mapping[str, str] = {}) -> None:
        headers = {"x-ms-blob-type": "BlockBlob", **condition}
        self._check_created(self._send("PUT", key, {}, headers, body), body)

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        try:
            self.put(key, body, {"If-Match": etag})
        except (KeyTaken, NotFound):
            return False
        return True

    def _check_created(self, reply: Reply, body: bytes | None = None) -> None:
        """Check the reply of a request that creates something.

        Raises:
            Unproven: it is none, or it names the MD5 of other bytes.
        """
        if reply.status != 201:
            raise Unproven(f"a write was answered by status {reply.status}, which Azure never does")
        stored = reply.headers.get("Content-MD5")
        if body is not None and stored:
            md5 = hashlib.md5(body, usedforsecurity=False).digest()
            if base64.b64encode(md5).decode() != stored:
                raise Unproven("a write was answered with the MD5 of other bytes")

    def get(self, key: str) -> bytes:
        return self.get_tagged(key).body

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        headers = {} if length is None else rest.range_header(0, length)
        try:
            reply = self._send("GET", key, {}, headers)
        except BeyondEnd:
            # An empty object; the reply names no ETag.
            return Tagged(b"", "")
        body = reply.body if length is None else rest.ranged(reply, 0, length)[0]
        return Tagged(body, reply.header("ETag"))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            reply = self._send("GET", key, {}, rest.range_header(offset, length))
        except BeyondEnd:
            return b""
        return self._range_of(offset, length, reply)

    def send_range(self, key: str, offset: int, length: int) -> SentObject | None:
        """Send a `get_range`, whose reply is read later. Returns None if it would have to wait."""
        if length <= 0:
            return None
        request = Request("GET", self._url(key), {}, rest.range_header(offset, length))
        body = partial(self._range_of, offset, length)
        try:
            return rest.send_ahead(request, self.config, self._account.sign, body)
        except Exception:
            # The caller uses `get_range` instead, which reports such an error.
            return None

    def _range_of(self, offset: int, length: int, reply: Reply) -> bytes:
        reply.header("x-ms-request-id")
        reply.header("ETag")
        body, total = rest.ranged(reply, offset, length)
        return Front.of(body, offset, length, total)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """Make one LIST. If the server cannot begin at a name, 1 LIST for each 5,000 names."""
        if after and self._begins_at is not False:
            page = self._beginning(prefix, limit, after)
            if page is not None:
                return page
        return self._following(prefix, limit, after)

    def _beginning(self, prefix: str, limit: int, after: str) -> Page | None:
        """A page that the server begins at a name.

        Returns:
            None if the server does not begin there, or that is not certain. It is certain once a
            page began with the name itself.
        """
        try:
            listed = self._page(prefix, limit + 1, "", after)
        except Refusal:
            raise
        except OptionError:
            # A server that has no such version or parameter refuses it.
            self._begins_at = False
            return None
        first = listed.entries[0].key if listed.entries else ""
        if first == after:
            self._begins_at = True
        elif first and first < after:
            self._begins_at = False
        if not self._begins_at:
            return None
        return self._following(prefix, limit, after, listed)

    def _following(self, prefix: str, limit: int, after: str, listed: Listed | None = None) -> Page:
        size = _LARGEST_PAGE if after else limit
        return rest.first_page(partial(self._page, prefix, size), prefix, limit, after, listed)

    def _page(
        self, prefix: str, size: int, marker: str, start: str = "", delimiter: str = ""
    ) -> Listed:
        query = {
            "restype": "container",
            "comp": "list",
            "prefix": prefix,
            "maxresults": str(min(size, _LARGEST_PAGE)),
            "marker": marker,
            "startFrom": start,
            "delimiter": delimiter,
        }
        query = {name: value for name, value in query.items() if value}
        reply = self._send("GET", "", query, _START_FROM if start else {})
        return self._read_page(reply, prefix)

    def _read_page(self, reply: Reply, prefix: str) -> Listed:
        try:
            root = ElementTree.fromstring(reply.body)
        except ElementTree.ParseError:
            raise Unproven("LIST was answered by no XML") from None
        blobs = root.find("Blobs")
        if root.tag != "EnumerationResults" or blobs is None:
            raise Unproven(f"LIST was answered by {root.tag[:40]!r}")
        if root.get("ContainerName", "").rpartition("/")[2] != self.container:
            raise Unproven("LIST was answered by the list of another container")
        if (root.findtext("Prefix") or "") != prefix:
            raise Unproven(f"LIST of {prefix} was answered by another one's list")
        entries = [_entry(blob) for blob in blobs.findall("Blob") if not _is_folder(blob)]
        folders = [_name(folder) for folder in blobs.findall("BlobPrefix")]
        return Listed(entries, folders, root.findtext("NextMarker") or "")

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        """Make one LIST, which shows up to 5,000 names, and one more for an empty page.

        With a hierarchical namespace only "/" is a delimiter: that gives None. `Folders.after` has
        Azure's marker too: no LIST of folders is certain to begin at a key.
        """
        delimiter = f"/{inside}/"
        key, _, marker = after.partition(_MARKER)
        read = partial(self._page, prefix, _LARGEST_PAGE, delimiter=delimiter)
        try:
            folders = rest.first_folders(
                read, prefix, key, delimiter, marker=marker, skips=not marker
            )
        except Refusal:
            raise
        except OptionError:
            return None
        if folders is None:
            return None
        page, marker = folders
        return page._replace(after=f"{page.after}{_MARKER}{marker}") if marker else page

    def delete(self, key: str) -> None:
        with suppress(NotFound):
            self._delete(key, "")

    def _delete(self, key: str, etag: str) -> None:
        bare = etag.strip('"')
        condition = {"If-Match": f'"{bare}"'} if bare else {}
        reply = self._send("DELETE", key, {}, {"x-ms-delete-snapshots": "include", **condition})
        if reply.status != 202:
            raise Unproven(f"DELETE was answered by status {reply.status}, which Azure never does")

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Make one DELETE for each object: Azure takes no money for it."""
        return rest.delete_each(self._delete, keys, etags)

    def age_ms(self, key: str) -> int:
        return self.head(key).age_ms()

    def head(self, key: str) -> Reply:
        """The properties of an object.

        Raises:
            NotFound: no object has this key.
        """
        return self._send("HEAD", key)

    def properties(self, of: Literal["account", "service", "container"]) -> Reply:
        """The properties of the container, of its account, or of the account's blobs."""
        if of == "container":
            return self._send("HEAD", "", {"restype": of})
        return self._send("GET", "", {"restype": of, "comp": "properties"}, of_account=True)

    def listed_at(self, prefix: str) -> str:
        """The Date of the reply to a LIST."""
        query = {"restype": "container", "comp": "list", "prefix": prefix, "maxresults": "1"}
        return self._send("GET", "", query).header("Date")

    def upload(self, key: str) -> _Blocks:
        """Begin an object in blocks, without a request."""
        return _Blocks(self, key)

    def put_block(self, key: str, block: str, body: bytes) -> None:
        """Store a block of an object that is not there yet."""
        query = {"comp": "block", "blockid": block}
        self._check_created(self._send("PUT", key, query, {}, body), body)

    def put_blocks(self, key: str, blocks: Sequence[str]) -> bool:
        """Create an object of stored blocks.

        Returns:
            True if this call created it. False if the key is taken, or the blocks are gone because
            it was.
        """
        shown = "".join(f"<Uncommitted>{block}</Uncommitted>" for block in blocks)
        body = f"<BlockList>{shown}</BlockList>".encode()
        try:
            self._check_created(self._send("PUT", key, {"comp": "blocklist"}, _ABSENT, body))
        except (KeyTaken, _BlocksGone):
            return False
        return True

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """Return an empty page: Azure itself removes blocks a week after the last one of a key."""
        return UnfinishedPage([], "")

    def discard(self, upload: Unfinished) -> None:
        """Do nothing: there is no such upload."""


class _BlocksGone(OptionError):
    """Azure has no such blocks: the object of their key was created, and perhaps deleted."""


class _Blocks:
    """An object in blocks. They become visible at once, with the list of them.

    Several threads may call `part` at once.
    """

    def __init__(self, store: AzureStore, key: str) -> None:
        self._store = store
        self._key = key
        # All uploads to a key share one set of blocks, so the names of these are unique.
        self._id = uuid.uuid4().hex
        self._sent: dict[int, str] = {}

    def part(self, number: int, offset: int, body: bytes) -> None:
        block = base64.b64encode(f"{self._id}{number:06d}".encode()).decode()
        self._store.put_block(self._key, block, body)
        self._sent[number] = block

    def complete(self) -> bool:
        return self._store.put_blocks(self._key, [self._sent[x] for x in sorted(self._sent)])

    def abort(self) -> None:
        """Leave the blocks to Azure: a request that removes them may remove another's object."""


def _name(element: ElementTree.Element) -> str:
    name = element.find("Name")
    if name is None or not name.text:
        raise Unproven("a LIST shows an object without a name")
    # A name that XML cannot hold is encoded.
    return unquote(name.text) if name.get("Encoded") == "true" else name.text


def _is_folder(blob: ElementTree.Element) -> bool:
    """Whether it is a folder of a hierarchical namespace, which is an object of no bytes there."""
    return blob.findtext("Properties/ResourceType") == "directory"


def _entry(blob: ElementTree.Element) -> Entry:
    size = blob.findtext("Properties/Content-Length")
    if size is None or not size.isdecimal():
        raise Unproven("a LIST shows an object without a size")
    return Entry(_name(blob), int(size), blob.findtext("Properties/Etag") or "")
