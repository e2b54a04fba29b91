"""Tests of ``detcore ui`` in a separate process."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPMessage
from pathlib import Path

import pytest
from job_server import wait_for
from page_records import add_search

from detcore_server.server_database import ServerDatabase

# A browser that records the URL to open.
BROWSER = (
    "#!/bin/sh\nstat -c %a $(echo $1 | sed s,file://,,) > {seen}\ncat ${{1#file://}} >> {seen}\n"
)


class OwnPage:
    """A running ``detcore ui``.

    Attributes:
        link: What it printed.
        port: Where it listens.
    """

    def __init__(self, home: Path, *options: str, **variables: str) -> None:
        self.home = home
        environment = {**os.environ, "DETCORE_HOME": str(home), **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "detcore", "ui", *options],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.link = ""
        for line in self.process.stdout:
            if line.strip().startswith("http"):
                self.link = line.strip()
            if "Ctrl-C" in line:
                break
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/ui/open\?link=\S+)", self.link)
        assert match, self.link
        self.port, self.path = int(match[1]), match[2]

    def get(self, path: str, **headers: str) -> tuple[int, HTTPMessage, str]:
        """Return the status, headers and text of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        response = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return response

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal like Ctrl-C. Returns the exit code and the remaining output."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def own_page(home: Path) -> Iterator[OwnPage]:
    with ServerDatabase.open(f"sqlite:///{home / 'detcore.db'}") as database:
        add_search(database, 2, 3, name="mine")
    page = OwnPage(home, "--no-browser")
    yield page
    if page.process.poll() is None:
        page.process.kill()
        page.process.communicate()


def test_link_works_once_and_stores_nothing(own_page: OwnPage) -> None:
    for path in ("/", "/ui/experiments", "/ui/trials/1", "/ui/login"):
        status, _, text = own_page.get(path)
        assert status == 403, path
        assert "mine" not in text
    assert own_page.get(own_page.path + "x")[0] == 403
    status, headers, text = own_page.get(own_page.path)
    assert status == 200
    cookie = headers["set-cookie"]
    assert cookie.startswith(f"detcore-{own_page.port}=")
    assert cookie.endswith("; HttpOnly; Path=/; SameSite=strict")  # no age: valid for this session
    assert 'content="0;url=/ui/experiments"' in text
    session = cookie.partition(";")[0]
    assert "mine" in own_page.get("/ui/experiments", Cookie=session)[2]
    status, headers, text = own_page.get(own_page.path)
    assert (status, headers.get("set-cookie")) == (403, None)
    assert "This link was already used" in text
    # The session continues. The server's API is unavailable, whatever a request contains.
    page = own_page.get("/ui/experiments/1", Cookie=session)[2]
    assert "Log out" not in page
    token = session.partition("=")[2]
    bearer = {"Cookie": session, "Authorization": f"Bearer {token}"}
    assert own_page.get("/api/detcore/v1/experiments", **bearer)[0] == 404
    code, out, err = own_page.end()
    assert (code, err) == (0, "")
    assert out.strip() == "Stopped."
    with ServerDatabase.open(f"sqlite:///{own_page.home / 'detcore.db'}") as database:
        assert database.list_users() == []
        assert database.find_token(token) is None


def test_other_host_names_are_rejected(own_page: OwnPage) -> None:
    """A site whose name resolves to this machine gets no content and cannot use up the link."""
    for host in ("evil.example", f"evil.example:{own_page.port}", "127.0.0.1", "127.0.0.1:1"):
        status, headers, text = own_page.get(own_page.path, Host=host)
        assert (status, headers.get("set-cookie")) == (421, None), host
        assert text == "This server is available only at 127.0.0.1 and localhost.\n"
    assert own_page.get(own_page.path, Host=f"localhost:{own_page.port}")[0] == 200


def test_ui_listens_on_loopback_only(own_page: OwnPage) -> None:
    listening = Path(f"/proc/{own_page.process.pid}/net/tcp").read_text().splitlines()
    port = f":{own_page.port:04X}"
    addresses = [line.split()[1] for line in listening if line.split()[1].endswith(port)]
    assert addresses[0] == f"0100007F{port}"


def test_browser_opens_private_file(home: Path, tmp_path: Path) -> None:
    """All users of the machine can see a process's arguments."""
    browser, output, temporary = tmp_path / "browser", tmp_path / "seen", tmp_path / "tmp"
    temporary.mkdir()
    browser.write_text(BROWSER.format(seen=output))
    browser.chmod(0o755)
    page = OwnPage(home, BROWSER=str(browser), TMPDIR=str(temporary))
    wait_for(lambda: output.exists() and page.link in output.read_text())
    assert output.read_text().startswith("600\n")
    assert page.end(signal.SIGHUP)[0] == 0  # as a closed terminal does
    assert list(temporary.iterdir()) == []
