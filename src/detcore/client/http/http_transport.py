"""A `Transport` for the records of a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from detcore.client.http.credentials import find_credentials, trusted_authorities
from detcore.client.http.http_session import ServerRefusedError, Session, normalize_url
from detcore.client.http.http_storage import HttpStorage, checkpoint_path, fetch_growth
from detcore.client.http.wire_documents import decode_value, read_document, read_documents
from detcore.contract.errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from detcore.client.documents import (
        Document,
        ExperimentQuery,
        ModelQuery,
        TrialChanges,
        VersionTexts,
    )
    from detcore.environment import Environment
    from detcore.records import Database, LogLine


_ROOT = "/api/detcore/v1"
# Timeout of slow requests, such as deleting files or starting a runner.
_LONG_S = 1800.0
PARTS = 1000
"""Maximum number of entries in an answer."""


def connect(
    address: str, user: str | None, password: str | None, environment: Environment
) -> HttpTransport:
    """Return the transport for a server. It connects and logs in on first use.

    Args:
        address: The server; see `normalize_url`.
        user: User name; None: see `find_credentials`.
        password: The user's password; None: see `find_credentials`.
        environment: The settings of this process.

    Raises:
        ConfigError: If the address is invalid, or the certificate file is missing.
    """
    url = normalize_url(address)

    def token() -> str:
        return find_credentials(url, user, environment, password=password)

    return HttpTransport(Session(url, token, certificate=trusted_authorities(environment)))


class HttpTransport:
    """Sends requests to a server; see `EmbeddedTransport`. Raises the server's errors.

    Args:
        session: The connection to the server.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def close(self) -> None:
        """Close the connections. The next request opens new connections."""
        self._session.close()

    # -- experiments ------------------------------------------------------------------------------

    def get_experiment(self, experiment_id: int) -> Document:
        """Return an experiment."""
        return read_document("experiment", self._get_json(f"/experiments/{experiment_id}"))

    def list_experiments(self, **query: Unpack[ExperimentQuery]) -> list[Document]:
        """Return experiments by id."""
        states = query.pop("states", None)
        names = None if states is None else [state.value for state in states]
        return self._list_documents(
            "experiment", "/experiments", state=names, **_make_params(query)
        )

    def control_experiment(self, experiment_id: int, action: str) -> None:
        """Perform an action: activate, pause, cancel, kill, archive, unarchive or delete."""
        path = f"/experiments/{experiment_id}"
        if action == "delete":
            self._send_change("DELETE", path, timeout_s=_LONG_S)
        else:
            self._send_change("POST", f"{path}/control", {"action": action}, timeout_s=_LONG_S)

    def list_trials(self, experiment_id: int, *, limit: int | None = None) -> list[Document]:
        """Return the trials of an experiment by id."""
        path = f"/experiments/{experiment_id}/trials"
        return self._list_documents("listed", path, limit=limit)

    # -- trials -----------------------------------------------------------------------------------

    def control_trial(self, trial_id: int, action: str) -> None:
        """Perform an action: cancel or kill."""
        self._send_change("POST", f"/trials/{trial_id}/control", {"action": action})

    def get_trial(self, trial_id: int) -> Document:
        """Return a trial."""
        return read_document("trial", self._get_json(f"/trials/{trial_id}"))

    def update_trial(self, trial_id: int, **changes: Unpack[TrialChanges]) -> Document:
        """Change a trial's notes or labels, and return the trial. None keeps a value."""
        answer = self._send_change("PATCH", f"/trials/{trial_id}", {**changes}, is_repeatable=True)
        return read_document("trial", answer)

    def list_metrics(self, trial_id: int, kind: str) -> list[Document]:
        """Return the reports of a trial by steps."""
        return self._list_documents("report", f"/trials/{trial_id}/metrics/{kind}")

    def read_log(self, trial_id: int, *, position: int, limit: int) -> Document:
        """Return lines of a trial's log from a position on."""
        params = {"position": position, "limit": limit}
        return read_document("log", self._get_json(f"/trials/{trial_id}/log", params))

    def download_event_files(self, trial_id: int, folder: str) -> int:
        """Update the event files in a directory, and return their number."""
        path = f"/trials/{trial_id}/event-files"
        files = self._list_documents("file", path)
        for file in files:
            fetch_growth(self._session, f"{_ROOT}{path}/content", file, Path(folder))
        return len(files)

    # -- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> Document:
        """Return a checkpoint by its UUID or a prefix of it."""
        return read_document("checkpoint", self._get_json("/checkpoints", {"uuid": uuid}))

    def list_checkpoints(self, trial_id: int) -> list[Document]:
        """Return the COMPLETED checkpoints of a trial, oldest first."""
        return self._list_documents("checkpoint", f"/trials/{trial_id}/checkpoints")

    def latest_checkpoint(self, trial_id: int) -> Document | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""
        answer = self._get_json(f"/trials/{trial_id}/latest-checkpoint")
        return None if answer is None else read_document("checkpoint", answer)

    def top_checkpoints(
        self,
        *,
        experiment_id: int | None,
        trial_id: int | None,
        metric: str | None,
        smaller_is_better: bool | None,
        limit: int | None,
        distinct_trials: bool,
    ) -> Document:
        """Return COMPLETED checkpoints, the best first."""
        params: dict[str, Any] = {"metric": metric, "smaller_is_better": smaller_is_better}
        if experiment_id is None:
            path = f"/trials/{trial_id or 0}/top-checkpoints"
        else:
            path = f"/experiments/{experiment_id}/top-checkpoints"
            params["distinct_trials"] = distinct_trials
        answer: Document = {}

        def request_part(page: dict[str, Any]) -> list[Document]:
            answer.update(read_document("top", self._get_json(path, {**params, **page})))
            part: list[Document] = answer["checkpoints"]
            return part

        checkpoints = _read_parts(request_part, limit)
        return {**answer, "checkpoints": checkpoints}

    def add_checkpoint_metadata(self, uuid: str, metadata: Document) -> Document:
        """Add to a checkpoint's metadata, and return the checkpoint."""
        path = f"{checkpoint_path(uuid)}/metadata"
        return read_document(
            "checkpoint", self._send_change("PATCH", path, metadata, is_repeatable=True)
        )

    def remove_checkpoint_metadata(self, uuid: str, keys: list[str]) -> Document:
        """Remove keys from a checkpoint's metadata, and return the checkpoint."""
        path = f"{checkpoint_path(uuid)}/metadata/remove"
        answer = self._send_change("POST", path, {"keys": keys}, is_repeatable=True)
        return read_document("checkpoint", answer)

    def delete_checkpoint(self, uuid: str, globs: list[str] | None) -> Document:
        """Delete a checkpoint's files, or matching files, and return the checkpoint."""
        path = checkpoint_path(uuid)
        if globs is None:
            return read_document("checkpoint", self._send_change("DELETE", path, timeout_s=_LONG_S))
        body = {"globs": globs}
        answer = self._send_change("POST", f"{path}/files/remove", body, timeout_s=_LONG_S)
        return read_document("checkpoint", answer)

    def download_checkpoint(self, uuid: str, folder: str) -> None:
        """Download a checkpoint's files to a directory that does not contain them yet."""
        from detcore.checkpoint import copy_checkpoint, is_complete_copy

        if not is_complete_copy(Path(folder), uuid):
            storage = HttpStorage(self._session, uuid)
            copy_checkpoint(storage, storage.uuid, Path(folder))

    # -- models -----------------------------------------------------------------------------------

    def create_model(
        self, name: str, description: str, metadata: Document, labels: list[str]
    ) -> Document:
        """Add a model."""
        body = {"name": name, "description": description, "metadata": metadata, "labels": labels}
        return read_document("model", self._send_change("POST", "/models", body))

    def get_model(self, model: str | int) -> Document:
        """Return a model by its name or its id."""
        if isinstance(model, int):
            return read_document("model", self._get_json(f"/models/{model}"))
        return read_document("model", self._get_json("/model", {"name": model}))

    def list_models(self, **query: Unpack[ModelQuery]) -> list[Document]:
        """Return models."""
        return self._list_documents("model", "/models", **_make_params(query))

    def update_model(
        self, model: str | int, *, description: str | None, labels: list[str] | None
    ) -> Document:
        """Change a model's description or labels. None keeps a value."""
        body = {"description": description, "labels": labels}
        return self._send_model_change("PATCH", model, "", body)

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Archive or unarchive a model."""
        return self._send_model_change(
            "POST", model, "/archive" if archived else "/unarchive", None
        )

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return self._send_model_change("PATCH", model, "/metadata", metadata)

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return self._send_model_change("POST", model, "/metadata/remove", {"keys": keys})

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions. Checkpoints stay."""
        self._send_change("DELETE", self._get_model_path(model))

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **texts: Unpack[VersionTexts]
    ) -> Document:
        """Register a checkpoint as the next version of a model, and return the version."""
        body = {"checkpoint_uuid": checkpoint_uuid, **texts}
        return read_document(
            "version", self._send_change("POST", f"{self._get_model_path(model)}/versions", body)
        )

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model (0 = latest), or None if it does not exist."""
        answer = self._get_json(f"{self._get_model_path(model)}/versions/{number}")
        return None if answer is None else read_document("version", answer)

    def list_versions(self, model: str | int, *, order_by: int) -> list[Document]:
        """Return the versions of a model, sorted by number."""
        return self._list_documents(
            "version", f"{self._get_model_path(model)}/versions", order_by=order_by
        )

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model. Its checkpoint stays."""
        self._send_change("DELETE", f"{self._get_model_path(model)}/versions/{number}")

    # -- shared -----------------------------------------------------------------------------------

    def records(self) -> Database:
        """Return the server's records, which are read-only."""
        return cast("Database", ServerRecords(self._session))

    def _get_json(self, path: str, params: dict[str, Any] | None = None) -> Any:
        return self._session.request("GET", f"{_ROOT}{path}", params=params)

    def _list_documents(
        self, kind: str, path: str, *, limit: int | None = None, **params: Any
    ) -> list[Document]:
        """Return all entries of a list, or the first `limit` entries."""

        def request_part(page: dict[str, Any]) -> list[Document]:
            return read_documents(kind, self._get_json(path, {**params, **page}))

        return _read_parts(request_part, limit)

    def _send_change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float | None = None,
        is_repeatable: bool = False,
    ) -> Any:
        return self._session.request(
            method,
            f"{_ROOT}{path}",
            json_body=body,
            timeout_s=timeout_s,
            is_repeatable=is_repeatable,
        )

    def _send_model_change(
        self, method: str, model: str | int, path: str, body: object
    ) -> Document:
        answer = self._send_change(
            method, f"{self._get_model_path(model)}{path}", body, is_repeatable=True
        )
        return read_document("model", answer)

    def _get_model_path(self, model: str | int) -> str:
        """Return the path of a model, which contains its id because a name may be any string."""
        number = model if isinstance(model, int) else self.get_model(model)["id"]
        return f"/models/{number}"


class ServerRecords:
    """The read methods of `detcore.records.Database`, executed by a server.

    Args:
        session: The connection to the server.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.url = session.url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that sends a request to the server.

        Raises:
            InvalidArgumentError: For a method that changes records.
        """
        from detcore.client.http.remote_reads import READS, plain_arguments, read_result

        if name.startswith("_"):
            raise AttributeError(name)
        if name not in READS:
            raise InvalidArgumentError(
                f"{name} is not available for the records of the server {self.url}.\n"
                "Run the command where the server runs, without --master and DETCORE_MASTER."
            )

        def call_remotely(*args: Any, **kwargs: Any) -> Any:
            answer = self.session.request(
                "POST",
                f"{_ROOT}/read/{name}",
                json_body={"arguments": plain_arguments(name, args, kwargs)},
                is_repeatable=True,
            )
            try:
                return read_result(name, decode_value(answer))
            except ValueError as error:
                raise ServerRefusedError(
                    f"the answer of {self.url} to {name} is invalid: "
                    f"{str(error).partition(chr(10))[0]}.\n"
                    "Check that the server has the same version of detcore."
                ) from error

        return call_remotely

    def open_checkpoint(self, uuid: str) -> HttpStorage:
        """Return the files of a checkpoint as a read-only storage.

        Raises:
            NotFoundError: If no checkpoint has this UUID.
        """
        return HttpStorage(self.session, uuid)

    def read_log(self, trial_id: int, position: int) -> tuple[list[LogLine], int]:
        """Return lines of a trial's log from a position on, and the position after them."""
        from detcore.records import LogLine

        transport, lines = HttpTransport(self.session), []
        while True:
            page = transport.read_log(trial_id, position=position, limit=PARTS)
            lines += [LogLine(**line) for line in page["lines"]]
            position = page["position"]
            if len(page["lines"]) < PARTS:
                return lines, position


def _read_parts(
    request_part: Callable[[dict[str, Any]], list[Document]], limit: int | None
) -> list[Document]:
    """Return the entries of a list, which the server sends in parts."""
    entries: list[Document] = []
    while True:
        size = PARTS if limit is None else min(limit - len(entries), PARTS)
        part = request_part({"limit": size, "offset": len(entries)})
        entries += part
        if len(part) < size or len(entries) == limit:
            return entries


def _make_params(query: ExperimentQuery | ModelQuery) -> dict[str, Any]:
    """Return a query as parameters of the server's routes."""
    return {"label" if name == "labels" else name: value for name, value in query.items()}
