"""Apply settings from flags and environment variables to the experiment file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from detcore.config.field_types import UNITS
from detcore.config.rules import LENGTHS
from detcore.config.source_text import (
    Diagnostic,
    Node,
    Place,
    Source,
    Span,
    find_node,
    make_diagnostic,
    set_node,
)
from detcore.config.yaml_reader import MAX_DEPTH, check_surrogates, read_yaml
from detcore.contract.errors import ConfigError

VARIABLE_PREFIX = "DETCORE_CONFIG__"
_LAUNCHER = ("launcher",)

Names = Sequence[tuple[str, Span]]  # with their positions
Override = tuple[Names, Node]


def parse_set_flags(flags: Iterable[str]) -> dict[str, object]:
    """Parse the values of ``--set`` flags into the `overrides` of `load_config`.

    Args:
        flags: Strings such as ``"searcher.max_length.batches=10"``. The last value of a name wins.

    Raises:
        ConfigError: If a string has no ``=``.
    """
    overrides: dict[str, object] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"--set {flag}: expected KEY=VALUE.\n"
                "KEY is the dotted name of a setting.\n"
                "Example: --set searcher.max_length.batches=10"
            )
        overrides.pop(name.strip(), None)
        overrides[name.strip()] = value
    return overrides


def read_overrides(
    overrides: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[list[Override], list[Diagnostic]]:
    """Read the settings of variables and flags, settings with lower precedence first."""
    variables = {k: v for k, v in environment.items() if k.startswith(VARIABLE_PREFIX)}
    ordered = sorted(variables.items())
    low, low_mistakes = _read_group("environment", "__", ordered, offset=len(VARIABLE_PREFIX))
    high, high_mistakes = _read_group("command line", ".", list(overrides.items()), offset=0)
    return low + high, low_mistakes + high_mistakes


def _read_group(
    name: str, separator: str, settings: Sequence[tuple[str, object]], *, offset: int
) -> tuple[list[Override], list[Diagnostic]]:
    texts = [(key, _format_value(value)) for key, value in settings]
    lines = (*(line for key, value in texts for line in f"{key}={value}".split("\n")),)
    source = Source(name=name, kind="environment" if name == "environment" else "flag", lines=lines)
    group: list[Override] = []
    mistakes: list[Diagnostic] = []
    line = 0
    for key, value in texts:
        names = _split_name(key, separator, source, line, offset)
        if bad := list(_bad_names(names)):
            mistakes += bad
        else:
            column = len(key) + 1
            node, bad = read_yaml(value, source, line=line, column=column)
            mistakes += bad
            if node is None and not bad:
                node = Node(None, source.make_span(line, column, len(value)))
            if node is not None:
                group.append((names, node))
        line += f"{key}={value}".count("\n") + 1
    return group, mistakes


def _bad_names(names: Names) -> Iterator[Diagnostic]:
    empty = [span for name, span in names if not name]
    if empty:
        yield make_diagnostic(empty[0], "an empty name")
    elif len(names) > MAX_DEPTH:
        message = f"a name of {len(names)} levels; a configuration has at most {MAX_DEPTH}"
        yield make_diagnostic(names[MAX_DEPTH][1], message)
    else:
        yield from filter(None, (check_surrogates(name, span) for name, span in names))


def _format_value(value: object) -> str:
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


def _split_name(key: str, separator: str, source: Source, line: int, offset: int) -> Names:
    names: list[tuple[str, Span]] = []
    for segment in key[offset:].split(separator):
        names.append((segment, source.make_span(line, offset, len(segment))))
        offset += len(segment) + len(separator)
    return names


def apply_override(root: Node, override: Override) -> Diagnostic | None:
    """Apply one setting to `root`, or return a diagnostic if the setting is wrong."""
    names, node = override
    ignore_case = node.span.source.kind == "environment"
    place: Place = ()
    for name, span in names:
        current = find_node(root, place)
        if current is not None and isinstance(current.value, list):
            if not name.isdigit() or int(name) >= len(current.value):
                return _no_item(name, span, len(current.value))
            place = (*place, int(name))
        else:
            place = (*place, _match_case(name, current) if ignore_case else name)
    keys = [span for _, span in names]
    if place[:-1] in LENGTHS and place[-1] in UNITS:
        # A length has one unit. The new unit replaces the unit in the file.
        node.key = keys.pop()
        node = Node({str(place[-1]): node}, node.key)
        place = place[:-1]
    name_of = find_node(root, (*place, "name")) if place == _LAUNCHER else None
    if name_of is None or name_of.value != node.value:  # keeps the section of this launcher
        set_node(root, place, node, keys)
    return None


def _match_case(name: str, current: Node | None) -> str:
    """Return the spelling in the file of a variable's name, which is usually in capitals."""
    entries = {} if current is None else current.entries
    if name in entries:
        return name
    same = [key for key in entries if key.lower() == name.lower()]
    return same[0] if len(same) == 1 else name.lower()


def _no_item(name: str, span: Span, count: int) -> Diagnostic:
    return make_diagnostic(
        span,
        f"no item '{name}' in a list of {count}",
        f"expected 0 to {count - 1}" if count else "the list is empty",
        help=["set the whole list instead"],
    )
