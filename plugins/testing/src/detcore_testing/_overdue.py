"""Find the deprecated names that a release promised to remove; see `detcore.deprecation`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Overdue", "find_overdue"]

_MARKS = {"Deprecation", "deprecated", "deprecated_argument", "deprecated_hook"}


@dataclasses.dataclass(frozen=True, slots=True)
class Overdue:
    """A deprecation that is due for removal.

    Attributes:
        path: The file.
        line: The line of the mark, from 1.
        removed_in: The first version that should not have it; empty: the mark has no literal
            version, so it cannot be checked.
    """

    path: Path
    line: int
    removed_in: str

    def __str__(self) -> str:
        if not self.removed_in:
            return f"{self.path}:{self.line}: removed_in is not written as a text"
        return f"{self.path}:{self.line}: to be removed in {self.removed_in}"


def find_overdue(folder: Path, version: str) -> list[Overdue]:
    """Return the deprecations in a folder of source that a version should not have any more.

    For a test of a distribution::

        assert not find_overdue(Path(detcore_bread.__file__).parent, detcore_bread.__version__)

    Args:
        folder: The source; all ``.py`` files below it are read, none is imported.
        version: The current version; a pre-release counts as the release.
    """
    found = []
    for path in sorted(folder.rglob("*.py")):
        for call in _marks(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            value = next((item.value for item in call.keywords if item.arg == "removed_in"), None)
            if isinstance(value, ast.Name) and value.id == "removed_in":
                continue  # a function that passes its own argument on
            text = value.value if isinstance(value, ast.Constant) else None
            if not isinstance(text, str):
                found.append(Overdue(path, call.lineno, ""))
            elif _numbers(text) <= _numbers(version):
                found.append(Overdue(path, call.lineno, text))
    return found


def _marks(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls that mark something, wherever their names were imported to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else (getattr(node.func, "id", ""))
            )
            if name in _MARKS and any(item.arg == "removed_in" for item in node.keywords):
                yield node


def _numbers(version: str) -> list[int]:
    """Return the numbers that a version begins with: ``[0, 3, 0, 0]`` for ``"0.3rc1"``."""
    release = re.sub(r"[^\d.].*", "", version)
    numbers = [int(part) for part in release.split(".") if part]
    return numbers + [0] * (4 - len(numbers))
