"""Write pieces of Markdown, and prepare pages for the site."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

__all__ = ["cell", "code", "for_the_site"]

_COMMENT = re.compile(r"^ *<!-- (?:blocks?|hidden): .*?-->\n", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>\.\./[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)
_DRAWING = re.compile(r"^!\[(?P<text>[^\]]*)\]\((?P<target>img/[\w-]+\.svg)\)$", re.MULTILINE)


def cell(text: str) -> str:
    """Return a text that may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(value: object) -> str:
    """Return a value as code, as JSON writes it."""
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def for_the_site(markdown: str, *, page: str, docs: Path) -> str:
    """Return a page without what only its tests need, and with its drawings in it.

    A link to a file outside the documentation, which the site does not have, becomes its path.

    Args:
        markdown: The page.
        page: Its path below ``docs``.
        docs: The folder of the documentation.
    """

    def to_path(match: re.Match[str]) -> str:
        target = posixpath.normpath(
            posixpath.join("docs", posixpath.dirname(page), match["target"])
        )
        if target.startswith("docs/"):
            return match[0]
        if not (docs.parent / target).exists():
            raise FileNotFoundError(f"{page} links to {target}, which does not exist")
        text = match["text"].strip("`")
        return (
            f"`{target}`" if text in target or target in text else f"{match['text']} (`{target}`)"
        )

    def draw(match: re.Match[str]) -> str:
        svg = (docs / match["target"]).read_text(encoding="utf-8")
        return f'<figure class="drawing" role="img" aria-label="{match["text"]}">\n{svg}</figure>'

    return _DRAWING.sub(draw, _LINK.sub(to_path, _COMMENT.sub("", markdown)))
