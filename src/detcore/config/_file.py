"""Read the text of an experiment file, or explain why it cannot be read."""

from __future__ import annotations

import codecs
from pathlib import Path

from detcore.config._problem import nearest
from detcore.config._source import Diagnostic, Source, Span, mistake

__all__ = ["read_file"]

# Upper bound on the experiment files that a message lists.
_MOST_FILES = 8


def read_file(path: Path) -> tuple[Source, str, list[Diagnostic]]:
    """Return the file as a source, its text with plain line ends, and mistakes that rule it out."""
    name = str(path)
    if path.suffix == ".py":
        source = Source(name=name, kind="file", lines=())
        return source, "", [_is_code(path, source)]
    try:
        raw = path.read_bytes()
    except OSError as exc:
        source = Source(name=name, kind="file", lines=())
        return source, "", [_unreadable(path, source, exc)]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        return _not_utf8(name, raw, exc)
    source, text = Source.of_file(name, text)
    if not any(_has_content(line) for line in source.lines):
        empty = mistake(
            Span(source, 0, 0, 0, 0),
            "the experiment file is empty",
            "nothing but blank lines and comments",
            help=["an experiment needs at least 'entrypoint' and 'searcher'"],
        )
        return source, text, [empty]
    return source, text, []


def _has_content(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#") and stripped not in ("---", "...")


def _unreadable(path: Path, source: Source, exc: OSError) -> Diagnostic:
    if path.is_dir():
        message = f"'{path}' is a folder, not an experiment file"
    elif isinstance(exc, FileNotFoundError):
        message = f"no file '{path}'"
    else:
        message = f"cannot read '{path}': {exc.strerror or exc}"
    near, hints = _experiment_files(path)
    meant = nearest(path.name, near)
    if meant is not None and not path.is_dir():
        hints = (f"did you mean '{path.with_name(meant)}'?", *hints)
    return mistake(Span(source, 0, 0, 0, 0), message, help=hints, suggestion=meant)


def _is_code(path: Path, source: Source) -> Diagnostic:
    return mistake(
        Span(source, 0, 0, 0, 0),
        "this is Python code; expected an experiment file (YAML)",
        help=[
            f"an experiment file names a trial class: 'entrypoint: {path.stem}:CLASS'",
            f"a script that calls core.init() runs by itself: python {path}",
            *_experiment_files(path)[1],
        ],
    )


def _experiment_files(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the experiment files near a path, and a line that lists them."""
    folder = path if path.is_dir() else path.parent
    near = sorted(p.name for pattern in ("*.yaml", "*.yml") for p in folder.glob(pattern))
    more = f" and {len(near) - _MOST_FILES} more" if len(near) > _MOST_FILES else ""
    listed = f"experiment files in {folder}: {', '.join(near[:_MOST_FILES])}{more}"
    return near, (listed,) if near else ()


def _not_utf8(
    name: str, raw: bytes, exc: UnicodeDecodeError
) -> tuple[Source, str, list[Diagnostic]]:
    text = raw.decode("utf-8", errors="replace").removeprefix("\ufeff")
    source, _ = Source.of_file(name, text)
    before = raw[: exc.start].decode("utf-8-sig", errors="replace")
    line = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw[:4] == codecs.BOM_UTF32_BE:
        is_32 = raw[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
        kind = "UTF-32" if is_32 else "UTF-16"
        message, label = f"the file is {kind}, not UTF-8", f"byte-order mark of {kind}"
        source = Source(name=name, kind="file", lines=("\ufffd\ufffd",))
    else:
        message = f"the file is not UTF-8: byte 0x{raw[exc.start]:02x}"
        label = "cannot be read"
    span = Span(source, line, column, line, column + 1)
    hint = "save the file as UTF-8 in your editor"
    return source, text, [mistake(span, message, label, help=[hint])]
