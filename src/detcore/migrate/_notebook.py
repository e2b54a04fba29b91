"""Finding what is to change in a notebook, which is not rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detcore.migrate._names import ROOTS
from detcore.migrate._report import Finding
from detcore.migrate._text import Text

__all__ = ["mentions"]

# A line of a cell is a text of its own, or follows the two characters of a line end in one.
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
