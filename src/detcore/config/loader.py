"""Load an experiment file: report all mistakes at once, and record the origin of each value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from detcore.config.experiment_config import ExperimentConfig
from detcore.config.mistakes import LoadOptions, check
from detcore.config.notices import code_notices
from detcore.config.overrides import lay_over, read_overrides
from detcore.config.problems import nearest
from detcore.config.source_text import (
    Diagnostic,
    Further,
    Node,
    Place,
    Source,
    Span,
    dotted,
    find,
    key_span,
    mistake,
)
from detcore.config.yaml_reader import line_and_column, read_yaml, write_yaml
from detcore.contract.errors import ConfigError
from detcore.contract.values import JSONValue
from detcore.masking import is_secret_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Checking this many takes a second or two; PyYAML takes minutes for ten times as many.
_MAX_CHARACTERS = 1_000_000
_MAX_BYTES = 4 * _MAX_CHARACTERS
# Upper bound on the experiment files that a message lists.
_MAX_FILES = 8
# Longer reports go unread.
_MAX_SHOWN = 100


class ExperimentFileError(ConfigError):
    """An experiment file with mistakes; its text is the full report.

    Attributes:
        diagnostics: The mistakes, in the order of the report.
    """

    def __init__(
        self, diagnostics: Collection[Diagnostic], *, name: str, secrets: Collection[Span] = ()
    ) -> None:
        self.diagnostics = tuple(diagnostics)
        self.name = name
        from detcore.config.rendering import render

        report = render(self.diagnostics[:_MAX_SHOWN], secrets=secrets)
        if any(found.primary.span.source.lines for found in self.diagnostics):
            report += f"\n\n{self.summary}"  # in a file that cannot be read, none are counted
        super().__init__(report)

    @property
    def summary(self) -> str:
        """The last line of the report."""
        count = len(self.diagnostics)
        shown = f", of which {_MAX_SHOWN} are shown" if count > _MAX_SHOWN else ""
        return f"{self.name}: {count} mistake{'s' if count != 1 else ''}{shown}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a value.

    Attributes:
        source: Which of the four sources.
        line: Line of the file, or number of the flag or variable, from 1; None for defaults.
        column: Column of the value there, from 1; None for defaults.
    """

    source: Literal["file", "flag", "environment", "default"]
    line: int | None = None
    column: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A valid experiment file.

    Attributes:
        config: The configuration, with defaults.
        text: The text of the file.
        path: The file.
        root: The text with its positions, and the settings of flags and variables in it.
        notices: A line for each field that was given and has no effect here, and for each
            hyperparameter that is probably misspelt, because the script has only a near name.
    """

    config: ExperimentConfig
    text: str
    path: Path
    root: Node
    notices: list[str]

    def find_origins(self) -> dict[str, Origin]:
        """Return the origin of every leaf of ``config.model_dump(mode="json")``, by dotted name."""
        leaves = _leaves(self.config.model_dump(mode="json"), ())
        return {dotted(place): _origin(self.root, place, value) for place, value in leaves}


def load_config(path: Path, **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Read an experiment file.

    A setting is taken from the option ``overrides``, else from ``environment``, else from the file,
    else it has its default. A setting replaces the value of the same name; a length replaces one in
    another unit.

    Args:
        path: The file, YAML in UTF-8.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose text reports all mistakes.
    """
    return _load(_read_file(path), path, options)


def load_text(text: str, *, name: str, **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Read the text of an experiment file that is not on this machine.

    Args:
        text: The text of the file.
        name: Name of the file in messages, and `LoadedConfig.path`.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose text reports all mistakes.
    """
    return _load(Source.of_file(name, text), Path(name), options)


def load_mapping(config: Mapping[str, object], **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Check a configuration given as a dictionary; reports show it as YAML.

    Args:
        config: Content of an experiment file.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose text reports all mistakes.
        ConfigError: If something in `config` cannot be written as YAML.
    """
    return load_text(format_mapping(config), name="config", **options)


def format_mapping(config: Mapping[str, object]) -> str:
    """Return a configuration given as a dictionary, written as YAML.

    Raises:
        ConfigError: If something in it cannot be written as YAML.
    """
    try:
        return write_yaml(dict(config))
    except yaml.YAMLError as exc:
        raise ConfigError(
            f"the configuration holds something that is no plain value: {exc}\n"
            "A configuration is stored as JSON.\n"
            "Use only dictionaries, lists, strings, numbers, booleans and None."
        ) from exc


def make_refusal_error(
    loaded: LoadedConfig, refused: Mapping[str, Exception]
) -> ExperimentFileError:
    """Return the report of sections that are valid by themselves, but rejected by plugins.

    Args:
        loaded: The experiment file.
        refused: The plugin's error, by the name of the section, such as ``"searcher"``.
    """
    found = []
    for section, error in refused.items():
        node = find(loaded.root, (section, "name")) or find(loaded.root, (section,)) or loaded.root
        message, *rest = str(error).splitlines()
        found.append(mistake(node.span, message, help=rest))
    return ExperimentFileError(found, name=str(loaded.path))


def _load(source: Source, path: Path, options: LoadOptions) -> LoadedConfig:
    text = source.text
    if len(text) > _MAX_CHARACTERS:
        size = f"{len(text):,} characters, more than {_MAX_CHARACTERS:,}"
        raise _too_large(source.name, size)
    overrides, environment = options.get("overrides", {}), options.get("environment", {})
    root, found, is_readable = _read(source, overrides, environment)
    config, mistakes, notices = check(root, options)
    # Settings of flags and variables can always be checked, except for missing keys.
    found += [m for m in mistakes if is_readable or m.primary.span.source is not source]
    if found or config is None:
        raise ExperimentFileError(
            _ordered(found, source), name=source.name, secrets=[*_secrets(root)]
        )
    if code_dir := options.get("code_dir"):
        notices += code_notices(root, code_dir)
    return LoadedConfig(config=config, text=text, path=path, root=root, notices=notices)


def _read(
    source: Source, overrides: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Node, list[Diagnostic], bool]:
    """Return a file with its settings laid over it, the mistakes, and whether it is a mapping."""
    read, found = read_yaml(source.text, source)
    is_readable = read is not None or not found
    root = read or Node({}, source.span(width=0))
    laid, bad_settings = read_overrides(overrides, environment)
    found += bad_settings
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        hint = "an experiment file has fields such as 'searcher:' and 'hyperparameters:'"
        message = f"expected the fields of an experiment, got {kind}"
        found.append(mistake(root.span, message, "write 'name: value' lines", help=[hint]))
        root, is_readable = Node({}, source.span(width=0)), False
    found += filter(None, [lay_over(root, override) for override in laid])
    return root, found, is_readable


def _secrets(node: Node, *, is_secret: bool = False) -> Iterator[Span]:
    """Yield the positions of values below a secret name."""
    for name, child in node.entries.items():
        yield from _secrets(child, is_secret=is_secret or is_secret_key(name))
    for item in node.value if isinstance(node.value, list) else ():
        yield from _secrets(item, is_secret=is_secret)
    if is_secret and not isinstance(node.value, (dict, list)):
        yield node.span


def _ordered(found: list[Diagnostic], source: Source) -> list[Diagnostic]:
    """Return the mistakes of the file first, those of each source in the order of its text."""
    return sorted(
        dict.fromkeys(found),
        key=lambda item: (
            item.primary.span.source is not source,
            item.source_name,
            item.line,
            item.column,
        ),
    )


def _leaves(value: JSONValue, place: Place) -> Iterator[tuple[Place, JSONValue]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _leaves(child, (*place, key))
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from _leaves(child, (*place, index))
    else:
        yield place, value


def _origin(root: Node, place: Place, value: JSONValue) -> Origin:
    node = find(root, place)
    if node is None and len(place) > 1:
        above = find(root, place[:-1])  # a length without a unit stands for {batches: …}
        is_scalar = above is not None and not isinstance(above.value, (dict, list, type(None)))
        node = above if is_scalar else None
    if node is None or (node.value is None and value is not None):
        return Origin(source="default")
    span = node.span
    if span.is_empty:
        span = key_span(root, place) or span
    return Origin(source=span.source.kind, line=span.line + 1, column=span.column + 1)


def _read_file(path: Path) -> Source:
    """Return the file as a source.

    Raises:
        ExperimentFileError: If it cannot be an experiment file.
    """
    name = str(path)
    if path.suffix == ".py":
        ways = (
            f"an experiment file names a trial class: 'entrypoint: {path.stem}:CLASS'",
            f"a script that calls core.init() runs by itself: python {path}",
        )
        message = "this is Python code; expected an experiment file (YAML)"
        raise _unreadable(name, message, help=[*ways, *_experiment_files(path)[1]])
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_BYTES + 1)  # a device may have no end
    except OSError as exc:
        near, hints = _experiment_files(path)
        message = f"cannot read '{path}': {exc.strerror or exc}"
        stems = {Path(each).stem: each for each in near}  # ".yaml" alone makes names similar
        meant = stems.get(nearest(path.stem, stems) or "")
        if os.path.isdir(path):
            message = f"'{path}' is a folder, not an experiment file"
        elif isinstance(exc, FileNotFoundError):
            message = f"no file '{path}'"
        if meant is not None and not os.path.isdir(path):
            hints = (f"did you mean '{path.with_name(meant)}'?", *hints)
        raise _unreadable(name, message, help=hints, suggestion=meant) from exc
    if len(raw) > _MAX_BYTES:
        raise _too_large(name, f"more than {_MAX_BYTES:,} bytes")
    try:
        return Source.of_file(name, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise ExperimentFileError([_not_utf8(name, raw, exc)], name=name) from exc


def _unreadable(name: str, message: str, **details: Unpack[Further]) -> ExperimentFileError:
    """Return the error of a file of which no line is shown."""
    source = Source(name=name, kind="file", lines=())
    return ExperimentFileError([mistake(source.span(width=0), message, **details)], name=name)


def _too_large(name: str, size: str) -> ExperimentFileError:
    hint = "an experiment file holds settings; keep data in separate files"
    return _unreadable(name, f"{name} has {size}", help=[hint])


def _experiment_files(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the experiment files near a path, and a line that lists them."""
    folder = path if os.path.isdir(path) else path.parent
    near = sorted(p.name for pattern in ("*.yaml", "*.yml") for p in folder.glob(pattern))
    more = f" and {len(near) - _MAX_FILES} more" if len(near) > _MAX_FILES else ""
    listed = f"experiment files in {folder}: {', '.join(near[:_MAX_FILES])}{more}"
    return near, (listed,) if near else ()


def _not_utf8(name: str, raw: bytes, exc: UnicodeDecodeError) -> Diagnostic:
    hint = "save the file as UTF-8 in your editor"
    source = Source.of_file(name, raw.decode("utf-8-sig", errors="replace"))
    before = raw[: exc.start].decode("utf-8-sig", errors="replace")
    span = source.span(*line_and_column(before, len(before)))
    message = f"the file is not UTF-8: byte 0x{raw[exc.start]:02x}"
    return mistake(span, message, "cannot be read", help=[hint])
