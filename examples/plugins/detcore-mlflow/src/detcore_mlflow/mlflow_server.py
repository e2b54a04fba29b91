"""Client for an MLflow server's REST API that distinguishes outages from rejected requests.

The MLflow package is not used, because importing it takes seconds in the training process and its
timeouts apply to the whole process. Source: https://mlflow.org/docs/latest/rest-api.html (2.0)
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
# Missing permission, timeout and too many requests may be temporary.
_TEMPORARY_STATUSES = frozenset({401, 403, 408, 429})


class RefusedError(PluginError):
    """Raised when the server rejects a request permanently.

    Attributes:
        code: MLflow's error code, such as ``"RESOURCE_DOES_NOT_EXIST"``.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class MlflowServer:
    """A tracking server. Every call opens a new connection with a timeout.

    Args:
        uri: URI of the server, ``http://...`` or ``https://...``.
    """

    def __init__(self, uri: str) -> None:
        if not uri.startswith(("http://", "https://")):
            raise UnavailableError(
                f"MLFLOW_TRACKING_URI is {uri!r}, but trials are mirrored only to servers.\n"
                "Set the address of a server, such as http://127.0.0.1:5000"
            )
        self._uri = uri.rstrip("/")
        self._timeout_s = float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or _TIMEOUT_S)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Send a GET request.

        Args:
            path: Path after ``/api/2.0/mlflow/``.
            **query: Query parameters.

        Raises:
            UnavailableError: If the server is unreachable or temporarily rejects requests.
            RefusedError: If the server rejects the request.
        """
        return self._send("GET", f"mlflow/{path}?{urllib.parse.urlencode(query)}", None, {})

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request. Arguments and errors are as in `get`."""
        data = json.dumps(body, allow_nan=False).encode()
        return self._send("POST", f"mlflow/{path}", data, {"Content-Type": "application/json"})

    def put_artifact(self, path: str, file: Path) -> None:
        """Upload a file to a server that serves artifacts. Errors are as in `get`."""
        with file.open("rb") as content:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(file.stat().st_size),
            }
            self._send("PUT", f"mlflow-artifacts/artifacts/{path}", content, headers)

    def _send(
        self, method: str, path: str, data: Any, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._uri}/api/2.0/{path}",
            data=data,
            headers={**headers, **_make_authorization()},
            method=method,
        )
        try:
            with urllib.request.urlopen(
                request, timeout=self._timeout_s, context=_make_ssl_context(self._uri)
            ) as response:
                document: dict[str, Any] = json.loads(response.read() or b"{}")
                return document
        except urllib.error.HTTPError as error:
            with error:
                raise self._translate_error(error, method, path) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: another server, such as a proxy, responded.
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(
                f"MLflow at {self._uri} is unreachable: {type(error).__name__}: {reason}"
            ) from error

    def _translate_error(
        self, error: urllib.error.HTTPError, method: str, path: str
    ) -> PluginError:
        try:
            document = json.loads(error.read())
            code, message = str(document["error_code"]), str(document["message"])
        except (OSError, ValueError, KeyError, TypeError):
            code, message = "", error.reason
        text = f"MLflow ({self._uri}) responded {error.code} to {method} {path}: {message}"
        if error.code >= 500 or error.code in _TEMPORARY_STATUSES:
            return UnavailableError(text)
        return RefusedError(text, code=code)


def _make_authorization() -> dict[str, str]:
    """Return the authorization header from MLflow's environment variables."""
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    user = os.environ.get("MLFLOW_TRACKING_USERNAME")
    if user:
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _make_ssl_context(uri: str) -> ssl.SSLContext | None:
    if not uri.startswith("https://"):
        return None
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        return ssl._create_unverified_context()
    return ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
