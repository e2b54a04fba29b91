"""The diff of each loop of examples/core_api against its plain loop, in docs/loops.md.

``python tests/support/loop_diffs.py`` writes them into the page; a test compares.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

__all__ = ["LOOPS_PAGE", "diff_of", "with_diffs"]

_ROOT = Path(__file__).parents[2]
LOOPS_PAGE = _ROOT / "docs" / "loops.md"
_BLOCK = re.compile(r"(?<=<!-- diff: )(\w+)( -->\n```diff\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)


def diff_of(loop: str) -> str:
    """Return what detcore adds to a plain loop, as a unified diff."""
    before, after = f"examples/core_api/plain/{loop}.py", f"examples/core_api/{loop}.py"
    lines = difflib.unified_diff(
        (_ROOT / before).read_text().splitlines(keepends=True),
        (_ROOT / after).read_text().splitlines(keepends=True),
        before,
        after,
        n=2,
    )
    # A context line that is empty is a space in a diff; editors and git dislike it.
    return "".join("\n" if line == " \n" else line for line in lines)


def with_diffs(page: str) -> str:
    """Return the page with every diff as it is now."""
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{diff_of(found[1])}", page)


if __name__ == "__main__":
    LOOPS_PAGE.write_text(with_diffs(LOOPS_PAGE.read_text()))
