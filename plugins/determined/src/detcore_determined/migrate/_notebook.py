"""Find the names to migrate in a notebook; notebooks are not rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detcore_determined.migrate._names import ROOTS
from detcore_determined.migrate._report import Finding
from detcore_determined.migrate._text import Text

__all__ = ["mentions"]

# In the file, a line of a cell is a JSON string, or follows an escaped line end inside one.
_IMPORT = re.compile(rf'(?:"|\\n)\s*(?:from|import)\s+(?P<name>(?:{"|".join(ROOTS)})\b[\w.]*)')


def mentions(source: str) -> Iterator[Finding]:
    """Yield a finding for each import of Determined in the cells of a notebook.

    Args:
        source: The file, JSON.
    """
    text = Text(source)
    for match in _IMPORT.finditer(source):
        line, column = text.place(match.start("name"))
        yield Finding(
            line, column, match["name"], "notebooks are not rewritten",
            "change it by hand, or make it a script: jupyter nbconvert --to script",
        )  # fmt: skip
