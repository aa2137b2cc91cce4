"""Parses the delete condition of a log, a small part of SQL, into a tree.

Spark's SQL can call methods of Java, so a reader that passed the text to Spark would run code of
the log's writer. Instead a reader builds its expression from this tree, and refuses any other text.

    condition := and (OR and)*
    and       := not (AND not)*
    not       := NOT not | predicate
    predicate := value [sign value | [NOT] IN (literal, …) | [NOT] LIKE 'text' | IS [NOT] NULL]
    value     := literal | column | function(value, …) | (condition)
    sign      := = == <=> <> != < <= > >=
    function  := COALESCE LENGTH LOWER TRIM UPPER
    column    := name(.field)*
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import isfinite

LONGEST = 4096  # characters
DEEPEST = 32  # levels of parentheses, NOT and functions
FUNCTIONS = ("coalesce", "length", "lower", "trim", "upper")
_SIGNS = {
    "==": "=",
    "!=": "<>",
    **{sign: sign for sign in ("=", "<=>", "<>", "<", "<=", ">", ">=")},
}
_WORDS = ("and", "or", "not", "in", "is", "like", "null", "true", "false")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
        | (?P<text>'[^'\\]*')
        | (?P<quoted>`(?:[^`]|``)+`)
        | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?!\w))
        | (?P<sign><=>|<>|!=|==|<=|>=|[=<>(),.])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Column:
    """A column, and the fields that lead into a struct."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Literal:
    """A constant. A number with an exponent is a float, otherwise with a point a Decimal."""

    value: None | bool | int | Decimal | float | str


@dataclass(frozen=True)
class Compare:
    """A comparison. `sign` is one of = <=> <> < <= > >=."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class In:
    """Whether the value is one of these."""

    value: "Node"
    choices: tuple[Literal, ...]


@dataclass(frozen=True)
class Like:
    """Whether the value matches the pattern, which has no backslash."""

    value: "Node"
    pattern: str


@dataclass(frozen=True)
class IsNull:
    """Whether the value is null."""

    value: "Node"


@dataclass(frozen=True)
class Not:
    """The negation of a condition."""

    value: "Node"


@dataclass(frozen=True)
class And:
    """AND of two or more conditions."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Or:
    """OR of two or more conditions."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Call:
    """A call of one of FUNCTIONS."""

    name: str
    arguments: tuple["Node", ...]


Node = Column | Literal | Compare | In | Like | IsNull | Not | And | Or | Call


@lru_cache(maxsize=16)
def parse(text: str) -> Node:
    """Parse a condition.

    Raises:
        ValueError: it is too long, too deep or outside of the grammar.
    """
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters, and the limit is {LONGEST}")
    return _Parser([*_tokens(text)]).parse()


@dataclass(frozen=True)
class _Token:
    """A keyword or sign in lower case, or a name, text or number with its spelling."""

    kind: str
    text: str


def _tokens(text: str) -> Iterator[_Token]:
    text = text.rstrip()
    at = 0
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            raise ValueError(f"{text[at:].lstrip()[:20]!r} is no part of such a condition")
        at = match.end()
        kind = match.lastgroup or ""
        value = match[match.lastgroup or 0]
        if kind == "word" and value.lower() in _WORDS:
            yield _Token("sign", value.lower())
        elif kind == "quoted":
            yield _Token("name", value[1:-1].replace("``", "`"))
        else:
            yield _Token("name" if kind == "word" else kind, value)


_END = _Token("end", "its end")


class _Parser:
    """A recursive descent parser."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        """Parse all tokens as one condition."""
        node = self._condition()
        if self._peek() is not _END:
            raise self._unexpected()
        return node

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _take(self, *signs: str) -> str:
        """Consume the next token if it is one of these signs. Otherwise return ""."""
        token = self._peek()
        if token.kind != "sign" or token.text not in signs:
            return ""
        self._at += 1
        return token.text

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unexpected()

    def _unexpected(self) -> ValueError:
        return ValueError(f"{self._peek().text!r} is unexpected")

    def _deeper(self, part: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        node = part()
        self._depth -= 1
        return node

    def _condition(self) -> Node:
        parts = [self._conjunction()]
        while self._take("or"):
            parts.append(self._conjunction())
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def _conjunction(self) -> Node:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _negated(self) -> Node:
        if self._take("not"):
            return Not(self._deeper(self._negated))
        return self._predicate()

    def _predicate(self) -> Node:
        value = self._value()
        if sign := self._take(*_SIGNS):
            return Compare(_SIGNS[sign], value, self._value())
        if self._take("is"):
            is_not = self._take("not")
            self._need("null")
            return Not(IsNull(value)) if is_not else IsNull(value)
        is_not = self._take("not")
        node: Node
        if self._take("in"):
            self._need("(")
            node = In(value, self._choices())
        elif self._take("like"):
            pattern = self._literal()
            if pattern is None or not isinstance(pattern.value, str):
                raise self._unexpected()
            # A search for two parts tries the second after each match of the first.
            if len(re.findall("%+", pattern.value.rstrip("%"))) > 1:
                raise ValueError("it has a LIKE with more than one % before its end")
            node = Like(value, pattern.value)
        elif is_not:
            raise self._unexpected()
        else:
            return value
        return Not(node) if is_not else node

    def _choices(self) -> tuple[Literal, ...]:
        choices: list[Literal] = []
        while True:
            literal = self._literal()
            if literal is None:
                raise self._unexpected()
            choices.append(literal)
            if not self._take(","):
                self._need(")")
                return tuple(choices)

    def _value(self) -> Node:
        if self._take("("):
            node = self._deeper(self._condition)
            self._need(")")
            return node
        literal = self._literal()
        if literal is not None:
            return literal
        path = [self._name()]
        if self._take("("):
            return self._call(path[0])
        while self._take("."):
            path.append(self._name())
        return Column(tuple(path))

    def _name(self) -> str:
        token = self._peek()
        if token.kind != "name":
            raise self._unexpected()
        self._at += 1
        return token.text

    def _call(self, name: str) -> Call:
        if name.lower() not in FUNCTIONS:
            raise ValueError(f"it calls {name}; it may call {', '.join(FUNCTIONS)}")
        arguments = [self._deeper(self._condition)]
        # Only COALESCE takes more than one.
        while name.lower() == "coalesce" and self._take(","):
            arguments.append(self._deeper(self._condition))
        self._need(")")
        return Call(name.lower(), tuple(arguments))

    def _literal(self) -> Literal | None:
        token = self._peek()
        constants = {"null": None, "true": True, "false": False}
        if token.kind == "sign" and token.text in constants:
            value: None | bool | int | Decimal | float | str = constants[token.text]
        elif token.kind == "text":
            value = token.text[1:-1]
        elif token.kind == "number":
            value = _number(token.text)
        else:
            return None
        self._at += 1
        return Literal(value)


def _number(text: str) -> int | Decimal | float:
    """A number with the type that Spark gives it.

    Raises:
        ValueError: no column can hold it.
    """
    if "e" in text.lower():
        if not isfinite(float(text)):
            raise ValueError(f"{text} is no number")
        return float(text)
    # Spark would make a decimal of an integer that exceeds a bigint.
    if sum(map(str.isdigit, text)) > (38 if "." in text else 18):
        raise ValueError(f"{text[:40]} has too many digits")
    return Decimal(text) if "." in text else int(text)
