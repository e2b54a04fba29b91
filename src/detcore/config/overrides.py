"""Apply settings from flags and environment variables on top of the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from detcore.config.field_types import UNITS
from detcore.config.rules import LENGTHS
from detcore.config.source_text import Diagnostic, Node, Place, Source, Span, find, mistake, put
from detcore.config.yaml_reader import MAX_DEPTH, half_a_character, read_yaml
from detcore.contract.errors import ConfigError

VARIABLE_PREFIX = "DETCORE_CONFIG__"
_LAUNCHER = ("launcher",)

Names = Sequence[tuple[str, Span]]  # with their positions
Override = tuple[Names, Node]


def parse_set_flags(flags: Iterable[str]) -> dict[str, object]:
    """Parse the texts of ``--set`` flags into the `overrides` of `load_config`.

    Args:
        flags: Texts such as ``"searcher.max_length.batches=10"``. The last one of a name is used.

    Raises:
        ConfigError: If a text has no ``=``.
    """
    overrides: dict[str, object] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"--set {name}: expected NAME=VALUE.\n"
                "A flag sets one field by its dotted name.\n"
                "Write it like --set searcher.max_length.batches=10"
            )
        overrides.pop(name.strip(), None)
        overrides[name.strip()] = value
    return overrides


def read_overrides(
    overrides: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[list[Override], list[Diagnostic]]:
    """Read the settings of flags and of variables, those with lower precedence first."""
    variables = {k: v for k, v in environment.items() if k.startswith(VARIABLE_PREFIX)}
    ordered = sorted(variables.items())
    read, found = _read("environment", "__", ordered, offset=len(VARIABLE_PREFIX))
    more, also_found = _read("--set", ".", list(overrides.items()), offset=0)
    return read + more, found + also_found


def _read(
    name: str, separator: str, settings: Sequence[tuple[str, object]], *, offset: int
) -> tuple[list[Override], list[Diagnostic]]:
    texts = [(key, _text(value)) for key, value in settings]
    lines = (*(line for key, value in texts for line in f"{key}={value}".split("\n")),)
    source = Source(name=name, kind="flag" if name == "--set" else "environment", lines=lines)
    read: list[Override] = []
    found: list[Diagnostic] = []
    line = 0
    for key, value in texts:
        names = _names(key, separator, source, line, offset)
        if bad := list(_bad_names(names)):
            found += bad
        else:
            column = len(key) + 1
            node, bad = read_yaml(value, source, line=line, column=column)
            found += bad
            if node is None and not bad:
                node = Node(None, source.span(line, column, len(value)))
            if node is not None:
                read.append((names, node))
        line += f"{key}={value}".count("\n") + 1
    return read, found


def _bad_names(names: Names) -> Iterator[Diagnostic]:
    empty = [span for name, span in names if not name]
    if empty:
        yield mistake(empty[0], "an empty name")
    elif len(names) > MAX_DEPTH:
        message = f"a name of {len(names)} levels; a configuration has at most {MAX_DEPTH}"
        yield mistake(names[MAX_DEPTH][1], message)
    else:
        yield from filter(None, (half_a_character(name, span) for name, span in names))


def _text(value: object) -> str:
    """Return a value as YAML.

    Raises:
        ConfigError: If it is not a plain value.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=str)
    except (RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"a setting cannot be written as JSON: {error}.\n"
            f"A configuration has at most {MAX_DEPTH} levels of plain values."
        ) from error


def _names(key: str, separator: str, source: Source, line: int, offset: int) -> Names:
    names: list[tuple[str, Span]] = []
    for segment in key[offset:].split(separator):
        names.append((segment, source.span(line, offset, len(segment))))
        offset += len(segment) + len(separator)
    return names


def lay_over(root: Node, override: Override) -> Diagnostic | None:
    """Apply one setting to `root`, or return a diagnostic if the setting is wrong."""
    names, node = override
    ignore_case = node.span.source.kind == "environment"
    place: Place = ()
    for name, span in names:
        current = find(root, place)
        if current is not None and isinstance(current.value, list):
            if not name.isdigit() or int(name) >= len(current.value):
                return _no_item(name, span, len(current.value))
            place = (*place, int(name))
        else:
            place = (*place, _spelling(name, current) if ignore_case else name)
    keys = [span for _, span in names]
    if place[:-1] in LENGTHS and place[-1] in UNITS:
        # A length has one unit: the new one replaces the unit in the file.
        node.key = keys.pop()
        node = Node({str(place[-1]): node}, node.key)
        place = place[:-1]
    name_of = find(root, (*place, "name")) if place == _LAUNCHER else None
    if name_of is None or name_of.value != node.value:  # else its section is there already
        put(root, place, node, keys)
    return None


def _spelling(name: str, current: Node | None) -> str:
    """Return the spelling in the file of a variable's name, which is usually in capitals."""
    known = {} if current is None else current.entries
    if name in known:
        return name
    same = [key for key in known if key.lower() == name.lower()]
    return same[0] if len(same) == 1 else name.lower()


def _no_item(name: str, span: Span, count: int) -> Diagnostic:
    return mistake(
        span,
        f"no item '{name}' in a list of {count}",
        f"expected 0 to {count - 1}" if count else "the list is empty",
        help=["set the whole list instead"],
    )
