"""Which settings are secret, and how they are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from detcore.config._suggest import distance
from detcore.types import JSONValue

__all__ = ["MASK", "hide_lines", "is_secret_key", "mask_config", "mask_text"]

MASK = "********"

_NAMES = ("access_key", "secret_key", "connection_string", "credential", "registry_auth")
_PARTS = re.compile(
    r"secret|passw(or)?d|passphrase|credential|connection_?string|registry_?auth"
    r"|(access|account|api|private)_?key"
    r"|(access|api|auth|bearer|identity|registry|sas|session)_?token",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)|(?<=[?&]sig=)[^&\s'\"]+", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"[\"']?([A-Za-z_][\w.-]*)[\"']?\s*[:=]")


def is_secret_key(name: str) -> bool:
    """Tell whether the value of a setting of this name must not be shown.

    Misspelt names count too: a message about the misspelling shows the line.
    """
    if _PARTS.search(name):
        return True
    lower = name.lower().replace("-", "_")
    near = (secret for secret in _NAMES if abs(len(lower) - len(secret)) <= 2)
    return any(distance(lower, secret) <= 2 for secret in near)


def mask_text(text: str) -> str:
    """Return `text` with the passwords and signatures of URLs in it starred out."""
    return _IN_URL.sub(lambda found: "*" * len(found.group()), text)


def mask_config(value: JSONValue, *, secret: bool = False) -> JSONValue:
    """Return a copy of a configuration with `MASK` in place of every secret.

    Args:
        value: The configuration or a part of it, as `ExperimentConfig.model_dump` gives it.
        secret: Whether all of it is secret.
    """
    if isinstance(value, Mapping):
        return {k: mask_config(v, secret=secret or is_secret_key(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [mask_config(item, secret=secret) for item in value]
    if secret and value not in (None, ""):
        return MASK
    if isinstance(value, str):
        name, equals, _ = value.partition("=")
        if equals and re.fullmatch(r"\w+", name) and is_secret_key(name):
            return f"{name}={MASK}"
        return mask_text(value)
    return value


def hide_lines(lines: Sequence[str], spans: Iterable[tuple[int, int, int, int]] = ()) -> list[str]:
    """Return lines of a source with secrets starred out, each as long as before.

    Works on text, so that it holds where the text cannot be parsed: from the value of a secret
    name to the end of its line, and every line indented deeper that follows.

    Args:
        lines: The lines.
        spans: Further secrets: line, column, end line and end column, from 0, end exclusive.
    """
    lines = list(lines)
    for first, column, last, end_column in spans:
        for number in range(first, min(last + 1, len(lines))):
            start = column if number == first else 0
            end = end_column if number == last else len(lines[number])
            lines[number] = _star(lines[number], start, end)
    return _hide_by_name(lines)


def _hide_by_name(lines: Sequence[str]) -> list[str]:
    hidden: list[str] = []
    secret_indent: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_item = indent == secret_indent and line.lstrip().startswith("- ")
        below = secret_indent is not None and (not line.strip() or indent > secret_indent)
        if below or is_item:
            hidden.append(_star(line, indent, len(line)))
            continue
        secret_indent = None
        start = _secret_start(_ASSIGNMENT.finditer(line))
        if start is None:
            hidden.append(mask_text(line))
            continue
        secret_indent = indent
        hidden.append(_star(line, start, len(line)))
    return hidden


def _star(line: str, start: int, end: int) -> str:
    return line[:start] + re.sub(r"\S", "*", line[start:end]) + line[end:]


def _secret_start(assignments: Iterable[re.Match[str]]) -> int | None:
    for found in assignments:
        if is_secret_key(found.group(1).split(".")[-1].split("__")[-1]):
            return found.end()
    return None
