"""Table filters such as ``val_loss < 0.1 and lr > 1e-3``, which are parsed and never run as code.

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
    """Whether a list contains an item, or a string contains a substring."""
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
_OPERAND = "a name, a number or a quoted string"
_KEYWORDS = frozenset({"and", "or", "not"})


class FilterError(InvalidArgumentError):
    """Raised when a filter is invalid."""

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
    """Parse a filter, and return a function that tests the values of a row.

    Comparisons with missing values or NaN are false. Order comparisons of strings with numbers are
    false as well.

    Args:
        text: The filter.
        names: Allowed names, and their keys in a row.

    Raises:
        FilterError: If the filter is invalid or uses an unknown name.
    """
    if len(text) > _MAX_CHARACTERS:
        length = f"{len(text)} characters"
        raise FilterError(text[:80], 0, f"at most {_MAX_CHARACTERS} characters", length)
    return _Parser(text, names).parse()


class _Parser:
    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self._text = text
        self._names = names
        self._tokens = _tokenize(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> Test:
        test = self._parse_any()
        if self._token.kind != "end":
            raise self._make_error("'and', 'or' or the end")
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

    def _make_error(self, expected: str) -> FilterError:
        token = self._token
        actual = "the end" if token.kind == "end" else repr(token.text)
        return FilterError(self._text, token.position, expected, actual)

    def _parse_any(self) -> Test:
        return self._join("or", any, self._parse_all)

    def _parse_all(self) -> Test:
        return self._join("and", all, self._parse_single)

    def _join(
        self, word: str, combine: Callable[[Iterable[bool]], bool], parse: Callable[[], Test]
    ) -> Test:
        tests = [parse()]
        while self._take(word):
            tests.append(parse())
        return lambda row: combine(test(row) for test in tests)

    def _parse_single(self) -> Test:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._make_error(f"at most {_MAX_DEPTH} nested brackets and 'not'")
        if self._take("not"):
            inner = self._parse_single()
            test: Test = lambda row: not inner(row)  # noqa: E731  (a closure as the others)
        elif self._take("("):
            test = self._parse_any()
            if not self._take(")"):
                raise self._make_error("')'")
        else:
            test = self._parse_comparison()
        self._depth -= 1
        return test

    def _parse_comparison(self) -> Test:
        left_operand = self._parse_operand()
        tests: list[Test] = []
        while self._token.kind == "operator":
            compare = _OPERATORS[" ".join(self._token.text.lower().split())]
            self._at += 1
            right = self._parse_operand()
            tests.append(_make_comparison(compare, left_operand, right))
            left_operand = right
        if not tests:
            raise self._make_error("a comparison: <, <=, >, >=, ==, !=, in or not in")
        return lambda row: all(test(row) for test in tests)

    def _parse_operand(self) -> _Operand:
        token = self._token
        word = token.text.lower()
        if token.kind == "number":
            value: object = float(word)
        elif token.kind == "text":
            value = token.text[1:-1]
        elif word in _CONSTANTS:
            value = _CONSTANTS[word]
        elif token.kind == "quoted" or (token.kind == "word" and word not in _KEYWORDS):
            return self._resolve_name(token.text.strip("`"))
        else:
            raise self._make_error(_OPERAND)
        self._at += 1
        return lambda _: value

    def _resolve_name(self, name: str) -> _Operand:
        key = self._names.get(name)
        if key is None:
            raise self._make_error(f"a column name ({_suggest_names(name, self._names)})")
        self._at += 1
        return lambda row: row.get(key)


def _tokenize(text: str) -> list[_Token]:
    tokens = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise FilterError(text, at, f"{_OPERAND}, or a comparison", repr(text[at]))
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*tokens, _Token("end", "", end)]


def _suggest_names(name: str, names: Mapping[str, str]) -> str:
    near = closest_match(name, names)
    listed = ", ".join(cut(known_name, 60) for known_name in [*names][:_NAMES_LISTED])
    listed += ", ..." * (len(names) > _NAMES_LISTED)
    return f"did you mean {cut(near, 60)}? Columns: {listed}" if near else listed


def _make_comparison(compare: Callable[..., bool], left: _Operand, right: _Operand) -> Test:
    def test(row: Row) -> bool:
        one, other = left(row), right(row)
        if one is None or other is None or one != one or other != other:  # NaN
            return False
        try:
            return bool(compare(one, other))
        except TypeError:  # strings and numbers cannot be ordered, nor can lists
            return False

    return test
