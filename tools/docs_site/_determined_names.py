"""The public names of Determined and their counterparts, from the tables of ``detcore migrate``."""

from __future__ import annotations

from collections.abc import Sequence

from detcore_determined.migrate.names import GONE, MODULES, MOVED, NOTES, SAME
from docs_site._markdown import cell

__all__ = ["determined_names_page"]

_ABOUT = """\
# Names of Determined

Generated from the tables that `detcore migrate` uses. [Migrating from
Determined](../migrating.md) describes the command.
"""
_PLACEHOLDERS = """\
`typing.Any` and `typing.Callable` replace names that exist for annotations only. Functions of the
client become methods of `Determined()`.
"""


def determined_names_page() -> str:
    """Return the page: modules, renamed names, and names without a counterpart."""
    modules = [
        (f"`{old}`", f"`{new}`", ", ".join(f"`{name}`" for name in SAME.get(old, ())))
        for old, new in MODULES.items()
    ]
    renamed = [
        (f"`{old}`", f"`{new.replace(':', '.')}`", NOTES.get(old, "")) for old, new in MOVED.items()
    ]
    missing = [(f"`{old}`", advice) for old, advice in GONE.items()]
    return "\n".join([
        _ABOUT,
        "## Modules\n",
        _format_table(("Determined", "detcore", "unchanged names"), modules),
        "## Renamed\n",
        _format_table(("Determined", "detcore", "note"), renamed),
        _PLACEHOLDERS,
        "## Without a counterpart\n",
        _format_table(("Determined", "advice"), missing),
    ])  # fmt: skip


def _format_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    lines += [f"| {' | '.join(cell(text) for text in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
