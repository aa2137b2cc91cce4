"""Wrong habits of stores: each changes the requests or the replies of a real server of a cloud."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from urllib3 import HTTPHeaderDict

from sparkwal.store.rest import Reply, Request

# Sends a request, with the rest of the arguments of `rest.send`.
Send = Callable[..., Reply]
Habit = Callable[[Send], Send]
_CONDITIONS = ("If-None-Match", "If-Match")


def is_list(request: Request) -> bool:
    return request.method == "GET" and "prefix" in request.query


def is_create(request: Request) -> bool:
    absent = request.headers.get("If-None-Match") == "*"
    return absent or request.query.get("ifGenerationMatch") == "0"


def without(names: tuple[str, ...], values: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in values.items() if name not in names}


def unconditional(request: Request) -> Request:
    """The request without its condition."""
    return replace(
        request,
        headers=without(_CONDITIONS, request.headers),
        query=without(("ifGenerationMatch",), request.query),
    )


def ignores_conditions(send: Send) -> Send:
    return lambda request, *rest: send(unconditional(request), *rest)


def checks_then_writes(send: Send) -> Send:
    """It looks whether the object is there, and writes a little later."""
    seen: set[str] = set()

    def habit(request: Request, *rest: Any) -> Reply:
        name = f"{request.url} {request.query.get('name')}"
        if not is_create(request) or name in seen:
            return send(request, *rest)
        time.sleep(0.005)
        seen.add(name)
        return send(unconditional(request), *rest)

    return habit


def loses_writes(send: Send) -> Send:
    """It acknowledges each third write before that of another key, and forgets it."""
    count = iter(range(10**9))

    def habit(request: Request, *rest: Any) -> Reply:
        reply = send(request, *rest)
        if is_create(request) and reply.status < 300 and next(count) % 3 == 2:
            name = request.query.get("name")
            url = request.url.replace("/upload/", "/") + (
                f"/{name.replace('/', '%2F')}" if name else ""
            )
            assert send(Request("DELETE", url, {}, {}), *rest).status < 300
        return reply

    return habit


def lists_late(send: Send) -> Send:
    """A LIST shows what there was at the LIST before it."""
    before: dict[str, Reply] = {}
    lock = threading.Lock()

    def habit(request: Request, *rest: Any) -> Reply:
        reply = send(request, *rest)
        if not is_list(request):
            return reply
        with lock:
            late = before.get(str(request.query), reply)
            before[str(request.query)] = reply
        return late

    return habit


def _listed(reply: Reply, change: Callable[[list[Any]], list[Any]]) -> Reply:
    """A page of a LIST with other entries."""
    if reply.body.startswith(b"{"):
        page = json.loads(reply.body)
        if "items" in page:
            page["items"] = change(page["items"])
        return replace(reply, body=json.dumps(page).encode())
    blobs = re.findall(rb"<Blob>.*?</Blob>", reply.body, re.DOTALL)
    rest = re.sub(rb"<Blob>.*</Blob>", b"@", reply.body, flags=re.DOTALL)
    return replace(reply, body=rest.replace(b"@", b"".join(change(blobs))))


def lists_backwards(send: Send) -> Send:
    def habit(request: Request, *rest: Any) -> Reply:
        reply = send(request, *rest)
        return _listed(reply, lambda found: found[::-1]) if is_list(request) else reply

    return habit


def lists_without_the_last(send: Send) -> Send:
    def habit(request: Request, *rest: Any) -> Reply:
        reply = send(request, *rest)
        return _listed(reply, lambda found: found[:-1]) if is_list(request) else reply

    return habit


def reads_another_range(send: Send) -> Send:
    """A range begins one byte later."""

    def habit(request: Request, *rest: Any) -> Reply:
        wanted = request.headers.get("Range")
        if not wanted:
            return send(request, *rest)
        begin, end = wanted.removeprefix("bytes=").split("-")
        moved = {**request.headers, "Range": f"bytes={int(begin) + 1}-{int(end) + 1}"}
        return send(replace(request, headers=moved), *rest)

    return habit


def deletes_nothing(send: Send) -> Send:
    def habit(request: Request, *rest: Any) -> Reply:
        if request.method != "DELETE":
            return send(request, *rest)
        return Reply(202, {"x-ms-request-id": "1"}, b"")

    return habit


def was_written_yesterday(send: Send) -> Send:
    """The time of a write is wrong."""

    def habit(request: Request, *rest: Any) -> Reply:
        reply = send(request, *rest)
        old = HTTPHeaderDict(reply.headers)
        if "Last-Modified" in old:
            old["Last-Modified"] = "Sun, 01 Jan 2023 00:00:00 GMT"
        body = re.sub(rb'"updated":\s*"[0-9]{4}', b'"updated":"2023', reply.body)
        return replace(reply, headers=old, body=body)

    return habit


# Each habit, and the check that finds it.
HABITS: dict[Habit, str] = {
    ignores_conditions: "put-if-absent",
    checks_then_writes: "put-if-absent, raced",
    loses_writes: "GET and LIST after write",
    lists_late: "GET and LIST after write",
    lists_backwards: "LIST order",
    lists_without_the_last: "GET and LIST after write",
    reads_another_range: "ranges",
    deletes_nothing: "deletes",
    was_written_yesterday: "age",
}
