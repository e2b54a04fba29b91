"""Stores with hostile keys or wrong answers."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from checkpoint_damage import save
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, s3_settings

from detcore.checkpoint import delete_checkpoint, verify_checkpoint
from detcore.errors import StorageError, UnsafePathError
from detcore.storage import StorageBackend
from detcore_storage import S3Storage

HOSTILE = ["../../escaped", "..", "a//b", "\x1b[2Jx", "/abs", "./dot", "x" * 600, "a\\..\\..\\x"]


@pytest.fixture
def client(moto_url: str) -> Iterator[Any]:
    client = botocore.session.get_session().create_client(
        "s3", endpoint_url=moto_url, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip
    yield client
    client.close()


def test_unsafe_listed_keys_are_harmless(moto_url: str, client: Any, tmp_path: Path) -> None:
    prefix = f"{tmp_path.name}/runs"
    storage = S3Storage(s3_settings(moto_url, prefix))
    environment = save(storage, tmp_path / "source")
    files = save(storage, tmp_path / "source 2")
    for name in HOSTILE:
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{environment.uuid}/{name}", Body=b"x")
    faults = verify_checkpoint(storage, environment.uuid)
    assert sorted(fault.name for fault in faults) == sorted(HOSTILE)
    assert all(fault.is_stray for fault in faults)
    assert all(str(fault).isprintable() for fault in faults)
    for name in ("../../escaped", "a//b", "./dot"):
        for call in (storage.read, lambda key: storage.delete([key])):
            with pytest.raises(UnsafePathError, match="is refused"):
                call(f"{environment.uuid}/{name}")
    environment.context.download(environment.uuid, tmp_path / "to" / "deep" / "back")
    got = {path.name for path in (tmp_path / "to" / "deep" / "back").iterdir()}
    assert got == {"a", "empty", "hollow", "metadata.json", "state"}
    assert [path.name for path in (tmp_path / "to" / "deep").iterdir()] == ["back"]
    assert not (tmp_path / "escaped").exists()

    delete_checkpoint(storage, environment.uuid)
    remaining = [entry.key[len(environment.uuid) + 1 :] for entry in storage.list(environment.uuid)]
    assert sorted(remaining) == sorted(HOSTILE)
    assert verify_checkpoint(storage, files.uuid) == []
    storage.close()


FIRST = 33


@contextlib.contextmanager
def lying_server(headers: dict[str, str], chunk: Callable[[], bytes]) -> Iterator[str]:
    """Run a server that lists one object of 33 bytes, and answers with endless data."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Suppress log messages."""

        def describe(self, status: int, fields: dict[str, str]) -> None:
            self.send_response(status)
            described = {"ETag": '"x"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", **fields}
            for name, value in described.items():
                self.send_header(name, value)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.describe(200, {"Content-Length": str(FIRST)})

        def do_GET(self) -> None:
            self.describe(206, {"Content-Range": f"bytes 0-{FIRST - 1}/{FIRST}", **headers})
            self.close_connection = True
            with contextlib.suppress(OSError):
                while not closing.is_set():
                    self.wfile.write(chunk())
                    closing.wait(0.01)  # endless, but slow enough for this machine

    closing = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            closing.set()
            server.shutdown()
            thread.join()


LIES: dict[str, tuple[dict[str, str], bytes]] = {
    "without a length": ({"Transfer-Encoding": "chunked"}, b"400\r\n" + bytes(1024) + b"\r\n"),
    "10 GB": ({"Content-Length": "10000000000"}, bytes(1024)),
}


@pytest.mark.parametrize("lie", LIES)
def test_endless_answer_is_cut_off(lie: str, tmp_path: Path) -> None:
    headers, data = LIES[lie]
    with lying_server(headers, lambda: data) as url:
        storage: StorageBackend = S3Storage(s3_settings(url, "p", deadline_s=2))
        with pytest.raises(StorageError, match="reading from"):
            storage.get_tree([(tmp_path / "to" / "k", "k")])
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 0
        storage.close()
