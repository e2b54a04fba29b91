"""A simple browser with a cookie and forms, which checks every page."""

from __future__ import annotations

import dataclasses
import http.client
import re
import urllib.parse
from html.parser import HTMLParser
from xml.etree import ElementTree

from running_server import PASSWORD, USER

__all__ = ["Answer", "PageClient", "ServedPage"]

_SCRIPTS = tuple(f"/ui/static/{name}.js" for name in ("uplot/uPlot.iife.min", "charts", "page"))
_VOID = {"meta", "link", "input", "br"}
_HEADING = re.compile(r"h[1-6]")


@dataclasses.dataclass(frozen=True)
class Answer:
    """Response from the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """Response body as text."""
        return self.body.decode()


class PageClient:
    """Client of one server that keeps the cookie."""

    def __init__(self, url: str) -> None:
        self.host = urllib.parse.urlsplit(url).netloc
        self.origin = url
        self.cookie = ""

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        """Request a page or send a form like a browser, without following redirects.

        Headers with the value "" are omitted.
        """
        all_headers = {"Cookie": self.cookie}
        body = None
        if method == "POST":
            all_headers["Origin"] = self.origin
            all_headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urllib.parse.urlencode(form or {})
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {name: value for name, value in all_headers.items() if value}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, all_headers)
            answer = connection.getresponse()
            read = answer.read()
        finally:
            connection.close()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                self.cookie = value.partition(";")[0]
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, read)

    def log_in(self, name: str = USER, password: str = PASSWORD) -> Answer:
        """Send the login form."""
        return self.ask("POST", "/ui/login", {"name": name, "password": password})

    def page(self, path: str, *, status: int = 200) -> ServedPage:
        """Request a page, and check it."""
        answer = self.ask("GET", path)
        assert answer.status == status, (path, answer.status, answer.text[:500])
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "*" not in policy
        return ServedPage(answer.text)


class ServedPage(HTMLParser):
    """A parsed page that rejects policy violations and accessibility faults.

    Attributes:
        rows: Cell texts of all table rows.
        links: Targets of links.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.title = ""
        self.texts: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self._ids: list[str] = []
        self._unlabelled: list[str] = []
        self._labelled: set[str] = set()
        self._captions = 0
        self._tables = 0
        self.feed(html)
        self.close()
        assert self._open == [], f"not closed: {self._open}"
        assert len(self._ids) == len(set(self._ids)), "an id is there twice"
        assert set(self._unlabelled) <= self._labelled, "a field without a label"
        assert self.headings[:1] == [1], "the first heading is not h1"
        assert self.headings.count(1) == 1
        steps = zip(self.headings, self.headings[1:], strict=False)
        assert all(later <= earlier + 1 for earlier, later in steps), self.headings
        assert self._captions == self._tables, "a table without a caption"
        assert self.title.endswith(" · detcore")
        assert {"main", "header"} <= set(re.findall(r"<(\w+)", html))
        for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
            ElementTree.fromstring(svg)

    @property
    def text(self) -> str:
        """Complete text."""
        return "\n".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element."""
        values = {name: value or "" for name, value in attrs}
        assert "style" not in values, f"<{tag}> {attrs}"
        assert not any(name.startswith("on") for name in values), f"<{tag}> {attrs}"
        assert tag not in ("style", "iframe", "object", "img", "base"), f"<{tag}> {attrs}"
        for name in ("src", "href", "action"):
            if name in values and tag != "use":
                assert re.match(r"/ui/|#|\?", values[name]), f"<{tag}> {attrs}"
        if tag == "script":
            assert values["src"] in _SCRIPTS, f"<{tag}> {attrs}"
        if tag == "a":
            self.links.append(values["href"])
        if "id" in values:
            self._ids.append(values["id"])
        if tag == "label" and "for" in values:
            self._labelled.add(values["for"])
        is_field = tag in ("input", "select") and values.get("type") != "hidden"
        if is_field and "label" not in self._open and "aria-label" not in values:
            self._unlabelled.append(values.get("id", f"<{tag}> {attrs}"))
        if tag == "th":
            assert values.get("scope") in ("col", "row"), f"<{tag}> {attrs}"
        if tag == "svg":
            assert values["role"] == "img"
            assert values["aria-label"]
        if _HEADING.fullmatch(tag):
            self.headings.append(int(tag[1]))
        self._tables += tag == "table"
        self._captions += tag == "caption"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that elements are closed in order."""
        assert self._open.pop() == tag, self.getpos()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Check an element without content."""
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        """Record text."""
        if self._open[-1:] == ["title"] and "svg" not in self._open:
            self.title += data
        elif self._open[-1:] == ["script"]:
            assert data.strip() == "", "a script in the page itself"
        elif data.strip():
            self.texts.append(data.strip())
            if self.rows and {"td", "th"} & set(self._open):
                self.rows[-1][-1] += data.strip()
