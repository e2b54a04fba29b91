"""Tests of a server behind nginx with the configuration of docs/server.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificate
from client_store import ClientStore
from running_server import PASSWORD, USER, RunningServer
from source_tree import ROOT

from detcore.client import Determined
from detcore.client.http import ServerUnavailableError, Session
from detcore.errors import DetcoreError
from detcore.records import Database, OutputLog
from detcore.types import ExperimentState, TrialState

# Surrounds the page's configuration, so that nginx runs as a user in a private directory.
MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
{user}
events {{ }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def page_configuration() -> str:
    """Return the configuration block of the page."""
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    match = re.search(r"```text\n(server \{.*?\n\})\n```", page, re.DOTALL)
    assert match is not None
    return match[1]


@contextlib.contextmanager
def nginx(certificate: Certificate, port: int, upstream: str) -> Iterator[None]:
    """Run nginx with the page's configuration. Only paths and ports are replaced."""
    folder = certificate.key.parent
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    assert Path(program).exists(), "nginx is missing: apt-get install nginx-light"
    server = page_configuration()
    for there, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("http://127.0.0.1:8080", upstream),
        ("/etc/ssl/detcore/chain.pem", str(certificate.certificate)),
        ("/etc/ssl/detcore/key.pem", str(certificate.key)),
    ):
        assert there in server
        server = server.replace(there, here)
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(MAIN.format(folder=folder, user=user, server=server))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)])
    try:
        deadline = time.monotonic() + 30
        while True:
            assert process.poll() is None, (folder / "error.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(30)


class Site:
    """A server behind nginx.

    Attributes:
        url: URL of nginx.
    """

    def __init__(
        self, url: str, server: RunningServer, store: ClientStore, certificate: Path
    ) -> None:
        self.url = url
        self.server = server
        self.store = store
        self.certificate = certificate

    def client(self) -> Determined:
        return Determined(self.url, USER, PASSWORD, certificate=self.certificate)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    certified = Certificate(tmp_path_factory.mktemp("nginx"))
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    server_port = str(free_port())
    options = ("--port", server_port, "--public-url", url, "--proxy", "127.0.0.1")
    with (
        RunningServer(home, *options) as server,
        Database.open(server.database_url) as database,
        nginx(certified, port, f"http://127.0.0.1:{server_port}"),
    ):
        yield Site(url, server, ClientStore(home, database), certified.certificate)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents the use of this machine's records."""
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)


def test_session_over_tls(site: Site) -> None:
    uuid = site.store.one_checkpoint()
    with site.client() as client:
        model = client.create_model("a/b c?d=%2F")
        assert model.register_version(uuid).model_version == 1
        assert client.get_model("a/b c?d=%2F").num_versions == 1
        folder = client.get_checkpoint(uuid).download()
        assert Path(folder, "weights.txt").read_text() == "1 2 3"
        with pytest.raises(DetcoreError, match="no experiment 77"):
            client.get_experiment(77)


def test_large_checkpoint_file_download(site: Site) -> None:
    text = "0123456789abcdef" * (4 << 20)  # 64 MB
    trial = site.store.trial(site.store.experiment())
    uuid = site.store.checkpoint(trial, 5, files={"large.txt": text})
    with site.client() as client:
        folder = client.get_checkpoint(uuid).download()
    assert Path(folder, "large.txt").stat().st_size == len(text)
    buffered = sum(path.stat().st_size for path in (site.certificate.parent / "proxy").rglob("*"))
    assert buffered < 1 << 20  # nginx stores none of it


def test_large_bodies_reach_server_limit(site: Site) -> None:
    """By default nginx rejects more than 1 MB."""
    with site.client() as client:
        model = client.create_model("large")
        model.add_metadata({"text": "x" * (4 << 20)})
        assert len(client.get_model("large").metadata["text"]) == 4 << 20
        with pytest.raises(DetcoreError, match=r"bytes|large|MB"):
            model.add_metadata({"text": "x" * (9 << 20)})


def test_log_is_followed_live(site: Site) -> None:
    database = site.store.database
    experiment = site.store.experiment(state=ExperimentState.RUNNING)
    trial = site.store.trial(experiment)
    log = OutputLog(Path(str(database.get_trial(trial).trial_dir)), 1)
    log.append("stdout", "first")
    lines: list[str] = []
    first = threading.Event()

    def follow() -> None:
        with site.client() as client:
            for line in client.get_trial(trial).logs(follow=True):
                lines.append(line)
                first.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(30)
    assert lines == ["first"]  # the line arrived before the end
    log.append("stdout", "second")
    log.close()
    database.set_trial_state(trial, TrialState.COMPLETED)
    thread.join(30)
    assert lines == ["first", "second"]


def test_stopped_server_behind_nginx(site: Site) -> None:
    with site.client() as client:
        client.create_model("stays")
        site.server.kill()
        session = Session(site.url, "x", certificate=site.certificate)
        with pytest.raises(ServerUnavailableError, match="502"):
            session.request("POST", "/api/detcore/v1/models", json_body={"name": "m"})
        session.close()
        site.server.start()
        assert client.get_model("stays").name == "stays"


def test_claimed_address_is_ignored(site: Site) -> None:
    """Wrong passwords are counted by name and address, so claimed addresses must not help."""
    context = ssl.create_default_context(cafile=str(site.certificate))
    body = json.dumps({"username": "nobody", "password": "wrong"}).encode()
    statuses = []
    for number in range(8):
        headers = {"Content-Type": "application/json", "X-Forwarded-For": f"10.0.0.{number}"}
        request = urllib.request.Request(f"{site.url}/api/detcore/v1/login", body, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, context=context)
        caught.value.close()
        statuses.append(caught.value.code)
    assert statuses[0] == 403
    assert statuses[-1] == 429
