"""Serve the S3 and GCS protocols and discard the content, to measure clients without a disk.

The server remembers names and sizes, and returns zeros. It checks nothing.

    python benchmarks/_drop_server.py [DELAY_S [ZEROS_MIB]]

prints its URL. Each request is answered after DELAY_S seconds. The zeros take ZEROS_MIB of memory
(default 1024). The bucket is called ``ckpt``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit

_TOKENS = itertools.count(1)


class Store:
    """Names, sizes, and the parts of unfinished uploads."""

    def __init__(self, zeros_mib: int) -> None:
        self.sizes: dict[str, int] = {}
        self.uploads: dict[str, list[object]] = {}
        self.zeros = os.memfd_create("zeros")
        self.zeros_bytes = zeros_mib << 20
        os.truncate(self.zeros, self.zeros_bytes)
        view = bytes(1 << 20)
        for _ in range(zeros_mib):  # a sparse file would be read faster than memory
            os.write(self.zeros, view)


class Connection:
    """One keep-alive connection."""

    def __init__(self, store: Store, link: socket.socket, delay_s: float) -> None:
        self.store = store
        self.link = link
        self.delay_s = delay_s
        self.rest = b""
        self.buffer = bytearray(1 << 20)

    def serve(self) -> None:
        """Answer requests until the peer disconnects."""
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.link, contextlib.suppress(ConnectionError, TimeoutError):
            while self.answer():
                pass

    def answer(self) -> bool:
        """Answer one request."""
        while (end := self.rest.find(b"\r\n\r\n")) < 0:
            data = self.link.recv(65536)
            if not data:
                return False
            self.rest += data
        head, self.rest = self.rest[:end].decode("latin-1"), self.rest[end + 4 :]
        lines = head.split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self.link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        url = urlsplit(target)
        query = parse_qs(url.query, keep_blank_values=True)
        is_json = url.path.startswith(("/storage/", "/upload/", "/download/"))
        length = int(headers.get("content-length", 0))
        # These bodies contain the size of the content or the name.
        is_read = query.get("uploadType") == ["multipart"]
        is_read |= ("uploadType" in query or method == "POST") and length < 1 << 20
        body = self.read(length) if is_read else self.drop(length)
        if self.delay_s:
            time.sleep(self.delay_s)
        size = int(headers.get("x-amz-decoded-content-length", length))
        handler = self.gcs if is_json else self.s3
        handler(method, url.path, query, headers, body, size)
        return True

    def read(self, length: int) -> bytes:
        """Return a body."""
        while len(self.rest) < length:
            self.rest += self.link.recv(1 << 20)
        body, self.rest = self.rest[:length], self.rest[length:]
        return body

    def drop(self, length: int) -> bytes:
        """Read a body and discard it."""
        length -= len(self.rest[:length])
        self.rest = b"" if length else self.rest[len(self.rest) :]
        while length:
            got = self.link.recv_into(self.buffer, min(length, len(self.buffer)))
            if not got:
                raise ConnectionResetError
            length -= got
        return b""

    def reply(self, status: str, body: bytes = b"", **headers: str) -> None:
        """Send a small answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.link.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def content(self, size: int, headers: dict[str, str], *, is_head: bool = False) -> None:
        """Send a file, or a range of it."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        start, stop = 0, size
        status = "200 OK"
        extra = ""
        if match:
            start = int(match[1])
            stop = min(size, int(match[2]) + 1 if match[2] else size)
            status = "206 Partial Content"
            extra = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
        self.link.sendall(
            f"HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\n{extra}"
            'ETag: "0"\r\nLast-Modified: Sat, 21 Nov 2026 12:00:00 GMT\r\n'
            "Content-Type: application/octet-stream\r\n\r\n".encode()
        )
        while start < stop and not is_head:
            place = start % self.store.zeros_bytes
            start += os.sendfile(self.link.fileno(), self.store.zeros, place, stop - start)

    def s3(
        self,
        method: str,
        path: str,
        query: dict[str, list[str]],
        headers: dict[str, str],
        body: bytes,
        size: int,
    ) -> None:
        """Answer a request of the S3 protocol."""
        key = unquote(path).removeprefix("/ckpt").lstrip("/")
        sizes, uploads = self.store.sizes, self.store.uploads
        if method == "PUT" and "partNumber" in query:
            uploads[query["uploadId"][0]].append(size)
            self.reply("200 OK", ETag='"0"')
        elif method == "PUT":
            sizes[key] = size
            self.reply("200 OK", ETag='"0"')
        elif method == "POST" and "uploads" in query:
            token = str(next(_TOKENS))
            uploads[token] = []
            self.reply(
                "200 OK", _xml("InitiateMultipartUploadResult", f"<UploadId>{token}</UploadId>")
            )
        elif method == "POST" and "uploadId" in query:
            sizes[key] = sum(
                part for part in uploads.pop(query["uploadId"][0]) if isinstance(part, int)
            )
            self.reply("200 OK", _xml("CompleteMultipartUploadResult", '<ETag>"0"</ETag>'))
        elif method == "POST" and "delete" in query:
            for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                sizes.pop(name, None)
            self.reply("200 OK", _xml("DeleteResult", ""))
        elif method == "DELETE":
            sizes.pop(key, None)
            self.reply("204 No Content")
        elif not key and method == "GET":
            self.reply("200 OK", self.listing(query))
        elif key in sizes:
            self.content(sizes[key], headers, is_head=method == "HEAD")
        else:
            self.reply(
                "404 Not Found", _xml("Error", "<Code>NoSuchKey</Code>") * (method != "HEAD")
            )

    def listing(self, query: dict[str, list[str]]) -> bytes:
        """Return a page of names."""
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        limit = int(query.get("max-keys", ["1000"])[0])
        names = sorted(k for k in list(self.store.sizes) if k.startswith(prefix) and k > after)
        page = names[:limit]
        more = len(names) > len(page)
        items = "".join(
            f"<Contents><Key>{name}</Key><Size>{self.store.sizes[name]}</Size><ETag>0</ETag>"
            "<LastModified>2026-11-21T12:00:00.000Z</LastModified></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        return _xml(
            "ListBucketResult",
            f"<Name>ckpt</Name><IsTruncated>{str(more).lower()}</IsTruncated>{token}{items}",
        )

    def gcs(
        self,
        method: str,
        path: str,
        query: dict[str, list[str]],
        headers: dict[str, str],
        body: bytes,
        size: int,
    ) -> None:
        """Answer a request of the GCS protocol (JSON)."""
        sizes, uploads = self.store.sizes, self.store.uploads
        kind = query.get("uploadType", [""])[0]
        if method == "POST" and kind == "resumable" and "upload_id" not in query:
            token = str(next(_TOKENS))
            name = query["name"][0] if "name" in query else json.loads(body)["name"]
            uploads[token] = [name, 0]
            here = f"http://{headers['host']}{path}?uploadType=resumable&upload_id={token}"
            self.reply("200 OK", b"{}", Location=here, Content_Type="application/json")
        elif "upload_id" in query:
            name = uploads[query["upload_id"][0]][0]
            match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers["content-range"])
            if match and (match[3] == "*" or int(match[2]) + 1 < int(match[3])):
                self.reply("308 Resume Incomplete", Range=f"bytes=0-{match[2]}")
                return
            sizes[str(name)] = int(headers["content-range"].rpartition("/")[2])
            self.reply("200 OK", self.resource(str(name)), Content_Type="application/json")
        elif method == "POST" and kind:
            name = query["name"][0] if "name" in query else _name_in(body)
            sizes[name] = _length_in(body, headers) if kind == "multipart" else size
            self.reply("200 OK", self.resource(name), Content_Type="application/json")
        else:
            name = unquote(path.partition("/o/")[2])
            if method == "GET" and not name:
                self.reply("200 OK", self.page(query), Content_Type="application/json")
            elif method == "DELETE":
                sizes.pop(name, None)
                self.reply("204 No Content")
            elif name not in sizes:
                self.reply("404 Not Found", b'{"error": {"code": 404, "message": "none"}}')
            elif query.get("alt") == ["media"]:
                self.content(sizes[name], headers)
            else:
                self.reply("200 OK", self.resource(name), Content_Type="application/json")

    def page(self, query: dict[str, list[str]]) -> bytes:
        """Return a page of names."""
        prefix = query.get("prefix", [""])[0]
        after = query.get("pageToken", [""])[0]
        names = sorted(k for k in list(self.store.sizes) if k.startswith(prefix) and k > after)
        page: dict[str, object] = {
            "kind": "storage#objects",
            "items": [json.loads(self.resource(n)) for n in names[:1000]],
        }
        if len(names) > 1000:
            page["nextPageToken"] = names[999]
        return json.dumps(page).encode()

    def resource(self, name: str) -> bytes:
        """Return the GCS description of an object."""
        return json.dumps(
            {
                "kind": "storage#object", "name": name, "bucket": "ckpt", "generation": "1",
                "metageneration": "1", "size": str(self.store.sizes[name]), "etag": "0",
                "contentType": "application/octet-stream", "md5Hash": "", "crc32c": "",
                "updated": "2026-11-21T12:00:00.000Z", "timeCreated": "2026-11-21T12:00:00.000Z",
            }
        ).encode()  # fmt: skip


def _xml(tag: str, content: str) -> bytes:
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    return f'<?xml version="1.0" encoding="UTF-8"?><{tag} {space}>{content}</{tag}>'.encode()


def _name_in(body: bytes) -> str:
    match = re.search(rb'"name":\s*"((?:[^"\\]|\\.)*)"', body[:4096])
    return json.loads(b'"' + match[1] + b'"') if match else ""


def _length_in(body: bytes, headers: dict[str, str]) -> int:
    """Return the size of the last part of a multipart body."""
    boundary = headers["content-type"].rpartition("boundary=")[2].strip("\"'").encode()
    last = body.split(b"--" + boundary)[2]
    # Lines end with CRLF, except those of gcsfs, which end with a line feed.
    end = b"\r\n" if b"\r\n\r\n" in last[:1024] else b"\n"
    return len(last.partition(end * 2)[2].removesuffix(end))


def main() -> None:
    """Serve until killed."""
    delay_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    store = Store(zeros_mib=int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        print(f"http://127.0.0.1:{server.getsockname()[1]}", flush=True)
        while True:
            link, _ = server.accept()
            connection = Connection(store, link, delay_s)
            threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    main()
