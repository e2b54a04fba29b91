"""Parse a page like a browser, and check its elements and resources."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

__all__ = ["Page"]

_TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "dl", "dt", "dd",
    "figure", "figcaption", "div", "ul", "li", "i", "span", "table", "caption", "thead", "tbody",
    "tr", "th", "td", "pre", "details", "summary", "svg", "g", "path", "use", "line", "text",
    "circle",
}  # fmt: skip
_ATTRIBUTES = {
    "lang", "charset", "name", "content", "http-equiv", "class", "role", "tabindex",
    "aria-label", "viewbox", "id", "d", "href", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r",
    "text-anchor", "font-weight", "scope", "width", "fill", "stroke", "stroke-width",
    "stroke-linecap", "stroke-linejoin",
}  # fmt: skip
_VOID = {"meta"}


class Page(HTMLParser):
    """A parsed page that rejects everything that detcore's pages do not need."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.texts: list[str] = []
        self.open: list[str] = []
        self.policy = ""
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), "an id is there twice"
        assert set(self.links) <= {f"#{name}" for name in self.ids}, "loads something"
        for svg in self.drawings():
            ElementTree.fromstring(svg)
        styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
        assert len(styles) == 1
        assert "url(" not in styles[0]
        assert "@import" not in styles[0]

    def drawings(self) -> list[str]:
        """Return the SVG drawings."""
        return re.findall(r"<svg.*?</svg>", self.html, re.DOTALL)

    @property
    def text(self) -> str:
        """Complete text, including titles."""
        return "\n".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element."""
        values = dict(attrs)
        assert tag in _TAGS, f"<{tag}> {attrs}"
        assert set(values) <= _ATTRIBUTES, f"<{tag}> {attrs}"
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        if "id" in values:
            self.ids.append(values["id"] or "")
        if "href" in values:
            self.links.append(values["href"] or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that elements are closed in order."""
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element without content."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        """Record text."""
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(data.strip())
