"""Load an experiment file, report all its mistakes, and record the origin of each value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from detcore.config.experiment_config import ExperimentConfig
from detcore.config.mistakes import LoadOptions, check_config
from detcore.config.notices import code_notices
from detcore.config.overrides import apply_override, read_overrides
from detcore.config.problems import find_closest
from detcore.config.source_text import (
    Diagnostic,
    Further,
    Node,
    Place,
    Source,
    Span,
    find_node,
    join_place,
    key_span,
    make_diagnostic,
)
from detcore.config.yaml_reader import line_and_column, read_yaml, write_yaml
from detcore.contract.errors import ConfigError
from detcore.contract.values import JSONValue
from detcore.masking import is_secret_key

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Checking a file of this size takes a second or two. PyYAML needs minutes for ten times the size.
_MAX_CHARACTERS = 1_000_000
_MAX_BYTES = 4 * _MAX_CHARACTERS
# Maximum number of experiment files in a message.
_MAX_FILES = 8
# Maximum number of mistakes in a report.
_MAX_SHOWN = 100


class ExperimentFileError(ConfigError):
    """Raised for an experiment file with mistakes. The message is the full report.

    Attributes:
        diagnostics: The mistakes, in the order of the report.
    """

    def __init__(
        self, diagnostics: Collection[Diagnostic], *, name: str, secrets: Collection[Span] = ()
    ) -> None:
        self.diagnostics = tuple(diagnostics)
        self.name = name
        from detcore.config.rendering import render_report

        report = render_report(self.diagnostics[:_MAX_SHOWN], secrets=secrets)
        if any(item.primary.span.source.lines for item in self.diagnostics):
            report += f"\n\n{self.summary}"  # an unreadable file has no countable mistakes
        super().__init__(report)

    @property
    def summary(self) -> str:
        """The last line of the report."""
        count = len(self.diagnostics)
        limit = f", of which {_MAX_SHOWN} are shown" if count > _MAX_SHOWN else ""
        return f"{self.name}: {count} mistake{'s' if count != 1 else ''}{limit}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a value.

    Attributes:
        source: Kind of source.
        line: Line in the file, or number of the flag or variable, from 1; None for defaults.
        column: Column of the value, from 1; None for defaults.
    """

    source: Literal["file", "flag", "environment", "default"]
    line: int | None = None
    column: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A valid experiment file.

    Attributes:
        config: The configuration, with defaults.
        text: Content of the file.
        path: Path of the file.
        root: The values with their positions, including settings from flags and variables.
        notices: A line for each field without effect, and for each hyperparameter that is probably
            misspelt because the script only contains a similar name.
    """

    config: ExperimentConfig
    text: str
    path: Path
    root: Node
    notices: list[str]

    def find_origins(self) -> dict[str, Origin]:
        """Return the origin of every leaf of ``config.model_dump(mode="json")``, by dotted name."""
        leaves = _list_leaves(self.config.model_dump(mode="json"), ())
        return {join_place(place): _find_origin(self.root, place, value) for place, value in leaves}


def load_config(path: Path, **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Read an experiment file.

    Values are searched in this order: the option ``overrides``, the option ``environment``, the
    file, the defaults. A length from a flag or variable also replaces a length in another unit.

    Args:
        path: The file, YAML in UTF-8.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose message reports all mistakes.
    """
    return _load_source(_read_file(path), path, options)


def load_text(text: str, *, name: str, **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Read the content of an experiment file that is not on this machine.

    Args:
        text: Content of the file.
        name: Name of the file in messages, and `LoadedConfig.path`.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose message reports all mistakes.
    """
    return _load_source(Source.from_text(name, text), Path(name), options)


def load_mapping(config: Mapping[str, object], **options: Unpack[LoadOptions]) -> LoadedConfig:
    """Check a configuration in a dictionary. Reports show it as YAML.

    Args:
        config: Content of an experiment file.
        **options: See `LoadOptions`.

    Raises:
        ExperimentFileError: A `ConfigError` whose message reports all mistakes.
        ConfigError: If a value in `config` cannot be written as YAML.
    """
    return load_text(format_mapping(config), name="config", **options)


def format_mapping(config: Mapping[str, object]) -> str:
    """Return a dictionary as YAML.

    Raises:
        ConfigError: If a value cannot be written as YAML.
    """
    try:
        return write_yaml(dict(config))
    except yaml.YAMLError as exc:
        raise ConfigError(
            f"the configuration contains a value that cannot be stored as JSON: {exc}\n"
            "Use only dictionaries, lists, strings, numbers, booleans and None."
        ) from exc


def make_refusal_error(
    loaded: LoadedConfig, refused: Mapping[str, Exception]
) -> ExperimentFileError:
    """Return the report of settings that plugins reject.

    Args:
        loaded: The experiment file.
        refused: Errors of plugins by setting, such as ``"searcher"`` or ``"launcher.lines.0"``.
    """
    mistakes = []
    for setting, error in refused.items():
        section, *names = setting.split(".")
        place = (section, *(int(name) if name.isdigit() else name for name in names))
        places = ((*place, "name"), place, (section, "name"), (section,))
        nodes = filter(None, (find_node(loaded.root, place) for place in places))
        node = next(nodes, loaded.root)
        message, *advice = str(error).splitlines()
        mistakes.append(make_diagnostic(node.span, message, help=advice))
    return ExperimentFileError(mistakes, name=str(loaded.path))


def _load_source(source: Source, path: Path, options: LoadOptions) -> LoadedConfig:
    text = source.text
    if len(text) > _MAX_CHARACTERS:
        size = f"{len(text):,} characters, more than {_MAX_CHARACTERS:,}"
        raise _make_size_error(source.name, size)
    overrides, environment = options.get("overrides", {}), options.get("environment", {})
    root, mistakes, is_readable = _read_settings(source, overrides, environment)
    if not text.strip() and not root.entries:
        hint = "an experiment file contains at least 'searcher' and 'entrypoint'"
        raise _make_read_error(source.name, f"'{source.name}' is empty", help=[hint])
    config, new_mistakes, notices = check_config(root, options)
    # Settings of flags and variables can always be checked, except for missing keys.
    mistakes += [m for m in new_mistakes if is_readable or m.primary.span.source is not source]
    if mistakes or config is None:
        raise ExperimentFileError(
            _sort_mistakes(mistakes, source), name=source.name, secrets=[*_find_secrets(root)]
        )
    if code_dir := options.get("code_dir"):
        notices += code_notices(root, code_dir)
    return LoadedConfig(config=config, text=text, path=path, root=root, notices=notices)


def _read_settings(
    source: Source, overrides: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Node, list[Diagnostic], bool]:
    """Return a file with overrides applied, the mistakes, and whether it is a mapping."""
    node, mistakes = read_yaml(source.text, source)
    is_readable = node is not None or not mistakes
    root = node or Node({}, source.make_span(width=0))
    valid_overrides, bad_settings = read_overrides(overrides, environment)
    mistakes += bad_settings
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        hint = "an experiment file has fields such as 'searcher:' and 'hyperparameters:'"
        message = f"expected the fields of an experiment, got {kind}"
        label = "write 'name: value' lines"
        mistakes.append(make_diagnostic(root.span, message, label, help=[hint]))
        root, is_readable = Node({}, source.make_span(width=0)), False
    mistakes += filter(None, [apply_override(root, override) for override in valid_overrides])
    return root, mistakes, is_readable


def _find_secrets(node: Node, *, is_secret: bool = False) -> Iterator[Span]:
    """Yield the positions of values under a secret key."""
    for name, child in node.entries.items():
        yield from _find_secrets(child, is_secret=is_secret or is_secret_key(name))
    for item in node.value if isinstance(node.value, list) else ():
        yield from _find_secrets(item, is_secret=is_secret)
    if is_secret and not isinstance(node.value, (dict, list)):
        yield node.span


def _sort_mistakes(mistakes: list[Diagnostic], source: Source) -> list[Diagnostic]:
    """Return the mistakes sorted by source, the file first, and by position."""
    return sorted(
        dict.fromkeys(mistakes),
        key=lambda item: (
            item.primary.span.source is not source,
            item.source_name,
            item.line,
            item.column,
        ),
    )


def _list_leaves(value: JSONValue, place: Place) -> Iterator[tuple[Place, JSONValue]]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _list_leaves(child, (*place, key))
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from _list_leaves(child, (*place, index))
    else:
        yield place, value


def _find_origin(root: Node, place: Place, value: JSONValue) -> Origin:
    node = find_node(root, place)
    if node is None and len(place) > 1:
        above = find_node(root, place[:-1])  # a length without a unit means {batches: …}
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
            f"run a script that calls core.init() directly: python {path}",
        )
        message = f"'{path}' is Python code; expected an experiment file (YAML)"
        raise _make_read_error(name, message, help=[*ways, *_experiment_files(path)[1]])
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_BYTES + 1)  # a device may be endless
    except OSError as exc:
        near, hints = _experiment_files(path)
        message = f"cannot read '{path}': {exc.strerror or exc}"
        stems = {Path(file_name).stem: file_name for file_name in near}  # ignores the suffix
        suggestion = stems.get(find_closest(path.stem, stems) or "")
        if os.path.isdir(path):
            message = f"'{path}' is a directory, not an experiment file"
        elif isinstance(exc, FileNotFoundError):
            message = f"no file '{path}'"
        if suggestion is not None and not os.path.isdir(path):
            hints = (f"did you mean '{path.with_name(suggestion)}'?", *hints)
        raise _make_read_error(name, message, help=hints, suggestion=suggestion) from exc
    if len(raw) > _MAX_BYTES:
        raise _make_size_error(name, f"more than {_MAX_BYTES:,} bytes")
    try:
        return Source.from_text(name, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise ExperimentFileError([_make_encoding_mistake(name, raw, exc)], name=name) from exc


def _make_read_error(name: str, message: str, **details: Unpack[Further]) -> ExperimentFileError:
    """Return the error for a file without showing any of its lines."""
    source = Source(name=name, kind="file", lines=())
    return ExperimentFileError(
        [make_diagnostic(source.make_span(width=0), message, **details)], name=name
    )


def _make_size_error(name: str, size: str) -> ExperimentFileError:
    hint = "an experiment file contains settings; store data in separate files"
    return _make_read_error(name, f"{name} has {size}", help=[hint])


def _experiment_files(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of experiment files near a path, and a line that lists them."""
    folder = path if os.path.isdir(path) else path.parent
    near = sorted(p.name for pattern in ("*.yaml", "*.yml") for p in folder.glob(pattern))
    more = f" and {len(near) - _MAX_FILES} more" if len(near) > _MAX_FILES else ""
    listed = f"experiment files in {folder}: {', '.join(near[:_MAX_FILES])}{more}"
    return near, (listed,) if near else ()


def _make_encoding_mistake(name: str, raw: bytes, exc: UnicodeDecodeError) -> Diagnostic:
    hint = "save the file as UTF-8 in your editor"
    source = Source.from_text(name, raw.decode("utf-8-sig", errors="replace"))
    before = raw[: exc.start].decode("utf-8-sig", errors="replace")
    span = source.make_span(*line_and_column(before, len(before)))
    message = f"the file is not UTF-8: byte 0x{raw[exc.start]:02x}"
    return make_diagnostic(span, message, "cannot be read", help=[hint])
