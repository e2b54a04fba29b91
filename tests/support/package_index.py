"""A local package index to which twine and ``uv publish`` upload and from which pip installs.

It supports PyPI's protocols: uploads with multipart forms, and the simple index.
"""

from __future__ import annotations

import base64
import contextlib
import email.message
import email.parser
import email.policy
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PackageIndex", "serve_index"]


class PackageIndex:
    """Distributions in a directory, and the upload token.

    Attributes:
        url: URL for uploads. Packages are under ``{url}simple/``.
        folder: Directory with a subdirectory for each distribution.
        token: Password for uploads by the user ``__token__``.
    """

    token = "pypi-of-a-test"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def add(self, form: dict[str, bytes], name: str, content: bytes) -> int:
        """Store a file, and return the HTTP status."""
        target = self.folder / form["name"].decode().lower().replace("_", "-") / name
        digest = hashlib.sha256(content).hexdigest()
        if form[":action"] != b"file_upload" or form["sha256_digest"].decode() != digest:
            return 400
        if target.exists():
            return 409
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return 200

    def page(self, name: str) -> str | None:
        """Return the page of a distribution, or None."""
        if not (self.folder / name).is_dir():
            return None
        files = sorted(self.folder.joinpath(name).iterdir())
        links = [f'<a href="/files/{name}/{file.name}">{file.name}</a>' for file in files]
        return "<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>"


@contextlib.contextmanager
def serve_index(folder: Path) -> Iterator[PackageIndex]:
    """Serve an index during the block."""
    index = PackageIndex(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, *parts = self.path.strip("/").split("/")
            page = index.page(parts[0]) if kind == "simple" and parts else None
            if page is not None:
                self._answer(200, page.encode(), "text/html")
            elif kind == "files" and index.folder.joinpath(*parts).is_file():
                content = index.folder.joinpath(*parts).read_bytes()
                self._answer(200, content, "application/octet-stream")
            else:
                self._answer(404, b"not found", "text/plain")

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != _basic("__token__", index.token):
                self._answer(401, b"who are you?", "text/plain")
                return
            form, name, content = _parse(self.headers["Content-Type"], body)
            self._answer(index.add(form, name, content), b"", "text/plain")

        def _answer(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _parse(kind: str, body: bytes) -> tuple[dict[str, bytes], str, bytes]:
    """Return the fields of a form, and the name and content of its file."""
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    form: dict[str, bytes] = {}
    file = ("", b"")
    for part in message.iter_parts():
        assert isinstance(part, email.message.EmailMessage)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        field = str(part.get_param("name", header="content-disposition"))
        if part.get_filename():
            file = (str(part.get_filename()), content)
        else:
            form[field] = content
    return form, *file
