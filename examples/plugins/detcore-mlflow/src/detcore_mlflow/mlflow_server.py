"""Talking to an MLflow server, and telling an outage from a mistake.

The server's REST API (version 2.0) is used as it is, and not MLflow's own client: importing that
takes seconds of computing time inside the process that trains, and its patience with a dead server
is set for the whole process. Source: https://mlflow.org/docs/latest/rest-api.html
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.errors import PluginError, UnavailableError

_TIMEOUT_S = 10.0
# Not let in, too many requests, and what is the server's own fault: it may pass.
_PASSING = frozenset({401, 403, 408, 429})


class RefusedError(PluginError):
    """The server does not take what it was sent.

    Attributes:
        code: MLflow's word for why, such as ``"RESOURCE_DOES_NOT_EXIST"``.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class MlflowServer:
    """A tracking server. Every call is a connection of its own, with a time limit.

    Args:
        uri: Its address, ``http://...`` or ``https://...``.
    """

    def __init__(self, uri: str) -> None:
        if not uri.startswith(("http://", "https://")):
            raise UnavailableError(
                f"MLFLOW_TRACKING_URI is {uri!r}: trials are mirrored to servers only.\n"
                "Give the address of one, such as http://127.0.0.1:5000"
            )
        self._uri = uri.rstrip("/")
        self._timeout_s = float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or _TIMEOUT_S)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Ask for something.

        Args:
            path: Behind ``/api/2.0/mlflow/``.
            **query: The query's parameters.

        Raises:
            UnavailableError: If the server cannot be reached, or does not let anybody in now.
            RefusedError: If it refuses.
        """
        return self._call("GET", f"mlflow/{path}?{urllib.parse.urlencode(query)}", None, {})

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send something; arguments and errors as in `get`."""
        data = json.dumps(body, allow_nan=False).encode()
        return self._call("POST", f"mlflow/{path}", data, {"Content-Type": "application/json"})

    def put_artifact(self, path: str, file: Path) -> None:
        """Send a file to the server's artifacts, where it keeps them itself; errors as in `get`."""
        with file.open("rb") as content:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(file.stat().st_size),
            }
            self._call("PUT", f"mlflow-artifacts/artifacts/{path}", content, headers)

    def _call(
        self, method: str, path: str, data: Any, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._uri}/api/2.0/{path}",
            data=data,
            headers={**headers, **_authorization()},
            method=method,
        )
        try:
            with urllib.request.urlopen(
                request, timeout=self._timeout_s, context=_context(self._uri)
            ) as response:
                answer: dict[str, Any] = json.loads(response.read() or b"{}")
                return answer
        except urllib.error.HTTPError as error:
            with error:
                raise self._translated(error, method, path) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: the answer of something that is no MLflow server, such as a proxy.
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(
                f"MLflow at {self._uri} cannot be reached: {type(error).__name__}: {reason}"
            ) from error

    def _translated(self, error: urllib.error.HTTPError, method: str, path: str) -> PluginError:
        try:
            told = json.loads(error.read())
            code, message = str(told["error_code"]), str(told["message"])
        except (OSError, ValueError, KeyError, TypeError):
            code, message = "", error.reason
        text = f"MLflow at {self._uri} answers {error.code} to {method} {path}: {message}"
        if error.code >= 500 or error.code in _PASSING:
            return UnavailableError(text)
        return RefusedError(text, code=code)


def _authorization() -> dict[str, str]:
    """Return the header that MLflow's own variables ask for."""
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if user:
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _context(uri: str) -> ssl.SSLContext | None:
    if not uri.startswith("https://"):
        return None
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        return ssl._create_unverified_context()
    return ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
