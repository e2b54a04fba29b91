"""Filters of tables, such as ``val_loss < 0.1 and lr > 1e-3``: parsed, and never evaluated as code.

::

    filter     = either ("or" either)*
    either     = single ("and" single)*
    single     = "not" single | "(" filter ")" | comparison
    comparison = operand (operator operand)+          operator: < <= > >= == != = in "not in"
    operand    = number | 'text' | "text" | true | false | name | `name with spaces`
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from detcore.errors import InvalidArgumentError, closest_match
from detcore_report import cut

Row = Mapping[str, object]
Test = Callable[[Row], bool]
_Operand = Callable[[Row], object]

_MAX_CHARACTERS = 1000
_MAX_DEPTH = 30
_NAMES_LISTED = 12
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<text>'[^']*'|"[^"]*")
    |(?P<quoted>`[^`]*`)
    |(?P<operator><=|>=|==|!=|<|>|=|(?:not\s+)?in(?![\w.\-/]))
    |(?P<word>[^\W\d][\w.\-/]*)
    |(?P<bracket>[()])
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def _is_in(one: object, other: object) -> bool:
    """Return whether a list has an entry, or a text another one as a part."""
    if isinstance(other, str):
        return isinstance(one, str) and one in other
    return isinstance(other, (list, tuple)) and one in other


_OPERATORS: Mapping[str, Callable[..., bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
    "in": _is_in,
    "not in": lambda one, other: not _is_in(one, other),
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False}
_OPERAND = "a name, a number, or a text in quotation marks"
_KEYWORDS = frozenset({"and", "or", "not"})


class FilterError(InvalidArgumentError):
    """A filter that cannot be understood."""

    def __init__(self, text: str, position: int, expected: str, found: str) -> None:
        super().__init__(
            f"character {position + 1} of the filter: expected {expected}, found {found}.\n"
            f"{text}\n{' ' * position}^"
        )


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_filter(text: str, names: Mapping[str, str]) -> Test:
    """Return whether a row passes, as a function of its values.

    Values that are missing or NaN pass no comparison, and neither do texts compared with numbers
    by order.

    Args:
        text: The filter.
        names: Names that it may use, and the key in a row of each.

    Raises:
        FilterError: If it does not parse, or uses another name.
    """
    if len(text) > _MAX_CHARACTERS:
        found = f"{len(text)} characters"
        raise FilterError(text[:80], 0, f"at most {_MAX_CHARACTERS} characters", found)
    return _Parser(text, names).parse()


class _Parser:
    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self._text = text
        self._names = names
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Test:
        test = self._any()
        if self._token.kind != "end":
            raise self._fail("'and', 'or', or the end")
        return test

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> bool:
        token = self._token
        if token.kind in ("word", "bracket") and token.text.lower() in texts:
            self._at += 1
            return True
        return False

    def _fail(self, expected: str) -> FilterError:
        token = self._token
        found = "the end" if token.kind == "end" else repr(token.text)
        return FilterError(self._text, token.position, expected, found)

    def _any(self) -> Test:
        return self._join("or", any, self._all)

    def _all(self) -> Test:
        return self._join("and", all, self._single)

    def _join(
        self, word: str, combine: Callable[[Iterable[bool]], bool], parse: Callable[[], Test]
    ) -> Test:
        tests = [parse()]
        while self._take(word):
            tests.append(parse())
        return lambda row: combine(test(row) for test in tests)

    def _single(self) -> Test:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._fail(f"at most {_MAX_DEPTH} brackets and 'not' within each other")
        if self._take("not"):
            inner = self._single()
            test: Test = lambda row: not inner(row)  # noqa: E731  (a closure as the others)
        elif self._take("("):
            test = self._any()
            if not self._take(")"):
                raise self._fail("')'")
        else:
            test = self._comparison()
        self._depth -= 1
        return test

    def _comparison(self) -> Test:
        left = self._operand()
        tests: list[Test] = []
        while self._token.kind == "operator":
            compare = _OPERATORS[" ".join(self._token.text.lower().split())]
            self._at += 1
            right = self._operand()
            tests.append(_compared(compare, left, right))
            left = right
        if not tests:
            raise self._fail("a comparison: <, <=, >, >=, ==, !=, in or not in")
        return lambda row: all(test(row) for test in tests)

    def _operand(self) -> _Operand:
        token = self._token
        word = token.text.lower()
        if token.kind == "number":
            value: object = float(word)
        elif token.kind == "text":
            value = token.text[1:-1]
        elif word in _CONSTANTS:
            value = _CONSTANTS[word]
        elif token.kind == "quoted" or (token.kind == "word" and word not in _KEYWORDS):
            return self._name(token.text.strip("`"))
        else:
            raise self._fail(_OPERAND)
        self._at += 1
        return lambda _: value

    def _name(self, name: str) -> _Operand:
        key = self._names.get(name)
        if key is None:
            raise self._fail(f"a name of the table ({_near(name, self._names)})")
        self._at += 1
        return lambda row: row.get(key)


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise FilterError(text, at, f"{_OPERAND}, or a comparison", repr(text[at]))
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", end)]


def _near(name: str, names: Mapping[str, str]) -> str:
    near = closest_match(name, names)
    listed = ", ".join(cut(known, 60) for known in [*names][:_NAMES_LISTED])
    listed += ", ..." * (len(names) > _NAMES_LISTED)
    return f"did you mean {cut(near, 60)}? There are {listed}" if near else listed


def _compared(compare: Callable[..., bool], left: _Operand, right: _Operand) -> Test:
    def test(row: Row) -> bool:
        one, other = left(row), right(row)
        if one is None or other is None or one != one or other != other:  # NaN
            return False
        try:
            return bool(compare(one, other))
        except TypeError:  # a text and a number have no order, and neither has a list
            return False

    return test
