"""Mutations that keep the structure of an input, so that it passes the parser and leads further.

A mutation takes bytes and a source of random numbers, and returns other bytes. The same numbers
lead to the same bytes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

# Values that a field of another type has.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 64, 1.5, -0.0, 1e300, float("nan"), float("inf")),
    *(2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**40, 10**400),
    *(
        "",
        " ",
        "a",
        "0",
        "-1",
        "1e9",
        "null",
        "..",
        "../x",
        "/",
        "a`b",
        "a\nb",
        "\0",
        "\ud800",
        "é",
    ),
    *("0" * 20, "9" * 20, "18446744073709551615", "file:///etc/passwd", "x" * 300, "\U0001f600"),
    *([], {}, [[]], [None], {"": ""}, {"type": "x"}),
)
_DEEP = 3000
_SEPARATORS = re.compile(rb"([\n\0])")
_WORD = re.compile(r"\s+|\w+|'[^']*'?|`[^`]*`?|<=>|[<>!=]=|.", re.DOTALL)


def json_lines(fragments: Sequence[Any] = ()) -> Mutation:
    """Mutates the JSON documents of an input, which newlines or zero bytes separate.

    Args:
        fragments: JSON values that lead further into the target.
    """

    def mutate(data: bytes, random: Random) -> bytes:
        pieces = _SEPARATORS.split(data)
        for _ in range(random.randint(1, 3)):
            documents = [n for n, piece in enumerate(pieces) if piece[:1] in (b"{", b"[")]
            if not documents:
                break
            chosen = random.choice(documents)
            if random.random() < 0.02:
                pieces[chosen] = pieces[chosen][:9] + b"[" * _DEEP
                continue
            if random.random() < 0.05:
                _change_lines(pieces, chosen, random)
                continue
            try:
                document = json.loads(pieces[chosen])
            except (ValueError, RecursionError):
                continue
            pieces[chosen] = _text(_changed(document, fragments, random), random)
        return b"".join(pieces)

    return mutate


def _change_lines(pieces: list[bytes], chosen: int, random: Random) -> None:
    """Repeat, remove or move a document."""
    other = random.randrange(len(pieces))
    match random.randrange(3):
        case 0:
            pieces[chosen] += b"\n" + pieces[chosen]
        case 1:
            pieces[chosen] = b""
        case _:
            pieces[chosen], pieces[other] = pieces[other], pieces[chosen]


def _text(document: Any, random: Random) -> bytes:
    try:
        text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    except RecursionError:
        return b"{}"
    return text.encode(errors="surrogatepass")


def _changed(document: Any, fragments: Sequence[Any], random: Random) -> Any:
    """A document with a few changes."""
    holder = [document]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        parent, key = random.choice([*_entries(holder)])
        _change(parent, key, [*_entries(holder)], fragments, random)
        if not holder:
            return None
    return holder[0]


def _entries(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Each (parent, key) in a value."""
    unread = [holder]
    while unread:
        parent = unread.pop()
        for key, value in [*(parent.items() if isinstance(parent, dict) else enumerate(parent))]:
            yield parent, key
            if isinstance(value, (dict, list)):
                unread.append(value)


def _change(
    parent: Any,
    key: Any,
    entries: Sequence[tuple[Any, Any]],
    fragments: Sequence[Any],
    random: Random,
) -> None:
    """Change one entry of a document in place."""
    value = parent[key]
    if isinstance(value, str) and value[:1] in ("{", "[") and random.random() < 0.8:
        # A document may be the text of a field of another one.
        changed = json_lines(fragments)(value.encode(errors="surrogatepass"), random)
        parent[key] = changed.decode(errors="surrogatepass")
        return
    match random.randrange(9):
        case 0:
            parent[key] = copy.deepcopy(random.choice(ODD_VALUES))
        case 1 | 2 if fragments:
            parent[key] = copy.deepcopy(random.choice(fragments))
        case 3:
            other, name = random.choice(entries)
            parent[key] = copy.deepcopy(other[name])
        case 4:
            del parent[key]
        case 5:
            _add(parent, key, fragments, random)
        case 6:
            wrapped = value
            for _ in range(random.choice((1, 1, 2, 70))):
                wrapped = [wrapped] if random.random() < 0.5 else {"a": wrapped}
            parent[key] = wrapped
        case _:
            parent[key] = _near(value, random)


def _add(parent: Any, key: Any, fragments: Sequence[Any], random: Random) -> None:
    """Add an entry beside another one."""
    value = copy.deepcopy(random.choice((parent[key], *fragments, *ODD_VALUES)))
    if isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), value)
    else:
        parent[random.choice((f"{key}", f"{key}x", key.upper(), "", "..", "a/b"))] = value


def _near(value: Any, random: Random) -> Any:
    """A value that differs little."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, value * 2, value**2 % 2**64))
    if isinstance(value, float):
        return random.choice((-value, value * 1e10, int(value) if abs(value) < 1e18 else 0))
    if isinstance(value, str):
        at = random.randrange(len(value) + 1)
        odd = random.choice([item for item in ODD_VALUES if isinstance(item, str)])
        return random.choice((value[:at], value[at:], value[:at] + odd + value[at:], value * 2))
    if isinstance(value, list):
        return random.sample(value, len(value))
    return dict(random.sample([*value.items()], len(value)))


def grammar(rules: dict[str, Sequence[str]], start: str) -> Mutation:
    """Mutates a text by its words, and puts texts of a grammar into it.

    Args:
        rules: the alternatives of each name. A name in angle brackets stands for its rule.
        start: the name of the rule of complete texts.
    """

    def mutate(data: bytes, random: Random) -> bytes:
        if random.random() < 0.2:
            return _generated(rules, start, random).encode()
        words = _WORD.findall(data.decode("latin-1"))
        for _ in range(random.randint(1, 3)):
            begin = random.randrange(len(words) + 1)
            end = min(len(words), begin + random.choice((0, 0, 1, 1, 2, 5)))
            match random.randrange(4):
                case 0:
                    part = [_generated(rules, random.choice([*rules]), random)]
                case 1:
                    part = []
                case 2:
                    part = 2 * words[begin:end]
                case _:
                    part = ["(", *words[begin:end], ")"]
            words[begin:end] = part
        return "".join(words).encode("latin-1", "replace")

    return mutate


def _generated(rules: dict[str, Sequence[str]], name: str, random: Random, depth: int = 0) -> str:
    """A text of a rule. Deep down the first alternative is taken, which ends."""
    text = rules[name][0] if depth > 40 else random.choice(rules[name])
    return re.sub(r"<(\w+)>", lambda match: _generated(rules, match[1], random, depth + 1), text)
