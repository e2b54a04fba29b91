"""Tests of TLS with generated certificates, and of certificate errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificate
from click.testing import CliRunner
from job_server import wait_for
from plain_http import PlainHttp, connect_to
from running_server import PASSWORD, USER, RunningServer

from detcore.cli import main
from detcore.client.http import ServerRefusedError, Session, open_session
from detcore.environment import read_environment
from detcore.errors import DetcoreError


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("home"), *certificate.options) as running:
        yield running


def test_trusted_certificate_allows_login(
    server: RunningServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    environment = read_environment(
        {
            "DETCORE_HOME": str(tmp_path),
            "DET_MASTER_CERT_FILE": str(certificate.certificate),
            "DET_USER": USER,
            "DET_PASS": PASSWORD,
        }
    )
    session = open_session(server.url, environment=environment)
    assert session.request("GET", "/api/detcore/v1/me")["name"] == USER
    session.close()


@pytest.mark.parametrize("trusted", ["nobody", "another"])
def test_untrusted_certificate_sends_nothing(
    server: RunningServer, certificate: Certificate, trusted: str, tmp_path: Path
) -> None:
    other = None if trusted == "nobody" else Certificate(tmp_path).certificate
    session = Session(server.url, "detcore_secret", certificate=other)
    path = f"/sent-by-{trusted}"
    with pytest.raises(ServerRefusedError, match=r"(?s)is not trusted.*DETCORE_MASTER_CERT"):
        session.request("GET", path)
    session.close()
    # The log is in request order and is written after the responses.
    session = Session(server.url, certificate=certificate.certificate)
    with pytest.raises(DetcoreError):
        session.request("GET", f"{path}-afterwards")
    session.close()
    wait_for(lambda: f"{path}-afterwards" in server.log.read_text())
    assert f"{path} " not in server.log.read_text()


def test_certificate_of_other_host_is_rejected(tmp_path: Path) -> None:
    other = Certificate(tmp_path, host="other.example")
    with RunningServer(tmp_path, *other.options) as server:
        session = Session(server.url, "detcore_secret", certificate=other.certificate)
        with pytest.raises(DetcoreError, match=r"(?i)127\.0\.0\.1|IP address mismatch"):
            session.request("GET", "/api/detcore/v1/me")
        session.close()


def test_plain_http_gets_no_response(server: RunningServer) -> None:
    with connect_to(server.url) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            answer = b""
        assert not answer.startswith(b"HTTP")


def test_old_tls_versions_are_rejected(server: RunningServer, certificate: Certificate) -> None:
    for version, is_spoken in ((ssl.TLSVersion.TLSv1_3, True), (ssl.TLSVersion.TLSv1_2, True)):
        context = ssl.create_default_context(cafile=str(certificate.certificate))
        context.minimum_version = context.maximum_version = version
        http = PlainHttp(server.url, context=context)
        assert (http.ask("GET", "/api/detcore/v1/me").status == 401) == is_spoken
        http.close()
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with connect_to(server.url) as connection, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(connection, server_hostname="127.0.0.1")


def test_cookie_requires_tls(server: RunningServer, certificate: Certificate) -> None:
    context = ssl.create_default_context(cafile=str(certificate.certificate))
    http = PlainHttp(server.url, context=context)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": server.url}
    body = f"name={USER}&password={PASSWORD}".encode()
    cookie = http.ask("POST", "/ui/login", body, headers=form).headers["set-cookie"]
    http.close()
    assert cookie.startswith("__Host-detcore-")
    assert "; secure" in cookie.lower()


def test_invalid_certificates_prevent_start(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "hidden")]
    for folder in folders:
        folder.mkdir()
    one, two = (Certificate(folder) for folder in folders[:2])
    hidden = Certificate(folders[2], password=b"secret")
    missing = tmp_path / "missing.pem"
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    for certificate, key, message in (
        (one.certificate, two.key, "KEY_VALUES_MISMATCH"),
        (hidden.certificate, hidden.key, "openssl pkey -in KEY"),
        (missing, one.key, f"cannot read the file {missing} of --certificate: No such file"),
        (one.certificate, tmp_path, "of --key: Is a directory"),
        (text, one.key, "Both must be PEM files"),
        (one.key, one.certificate, "Both must be PEM files"),
    ):
        options = ["--certificate", str(certificate), "--key", str(key)]
        result = CliRunner().invoke(main, ["serve", "--port", "0", *options])
        assert message in result.output
        assert (result.exit_code, "detcore serves" in result.output) == (2, False)
    result = CliRunner().invoke(main, ["serve", "--certificate", str(one.certificate)])
    assert "must be used together" in result.output
