"""Classification of outages and rejected requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from detcore_mlflow import plugin
from detcore_mlflow.mirror_state import read_state
from detcore_mlflow.mlflow_server import MlflowServer, RefusedError

from detcore.errors import UnavailableError
from detcore.plugins import EventInfo
from detcore.types import TrialInfo


class _Handler(BaseHTTPRequestHandler):
    """Responds with the status in the path."""

    def do_GET(self) -> None:
        status = int(self.path.split("status=")[1])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'{"error_code": "SOME_CODE", "message": "some reason"}')

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def answering() -> Iterator[MlflowServer]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield MlflowServer(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 504])
def test_temporary_status_is_an_outage(status: int, answering: MlflowServer) -> None:
    with pytest.raises(UnavailableError, match=f"responded {status} to GET .*: some reason"):
        answering.get("runs/get", status=str(status))


@pytest.mark.parametrize("status", [400, 404, 409])
def test_permanent_status_is_a_rejection(status: int, answering: MlflowServer) -> None:
    with pytest.raises(RefusedError, match=f"responded {status}") as caught:
        answering.get("runs/get", status=str(status))
    assert caught.value.code == "SOME_CODE"


def test_refused_connection_is_an_outage() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match=r"is unreachable: URLError: .*refused"):
        MlflowServer(f"http://127.0.0.1:{port}").get("runs/get")


def test_silent_server_is_an_outage_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="timed out"):
            MlflowServer(uri).get("runs/get")


def test_non_server_address_is_rejected() -> None:
    with pytest.raises(UnavailableError, match=r"'sqlite:///x\.db', but trials are mirrored only"):
        MlflowServer("sqlite:///x.db")


def test_key_is_written_before_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
    trial = TrialInfo(
        experiment_id=1, trial_id=2, run_id=1, trial_seed=0, hparams={}, config={}, model_dir="/",
        trial_dir=str(tmp_path),
    )  # fmt: skip
    for _ in range(2):
        with pytest.raises(UnavailableError):
            plugin.detcore_trial_started(trial, EventInfo(number=1, time=1.0))
    state = read_state(tmp_path)
    assert len(state.key) == 32
    assert state.run_id is None
