"""The records behind a server, as the client asks for them."""

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
# Timeout of slow requests: deleting an experiment's or a checkpoint's files, starting a runner.
_LONG_S = 1800.0
PARTS = 1000
"""Entries that a server answers at most."""


def connect(
    address: str, user: str | None, password: str | None, environment: Environment
) -> HttpTransport:
    """Return the transport for a server; it connects and logs in only when it is used.

    Args:
        address: The server; see `normalize_url`.
        user: User name there; None: see `find_credentials`.
        password: The user's password; None: see `find_credentials`.
        environment: The settings of this process.

    Raises:
        ConfigError: If the address cannot be used, or there is no file of authorities.
    """
    url = normalize_url(address)

    def token() -> str:
        return find_credentials(url, user, environment, password=password)

    return HttpTransport(Session(url, token, certificate=trusted_authorities(environment)))


class HttpTransport:
    """Asks a server; see `EmbeddedTransport`. Raises the errors that it raised.

    Args:
        session: The connection to it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def close(self) -> None:
        """Close the connections; the next question makes new ones."""
        self._session.close()

    # -- experiments ------------------------------------------------------------------------------

    def get_experiment(self, experiment_id: int) -> Document:
        """Return an experiment."""
        return read_document("experiment", self._get(f"/experiments/{experiment_id}"))

    def list_experiments(self, **query: Unpack[ExperimentQuery]) -> list[Document]:
        """Return experiments by id."""
        states = query.pop("states", None)
        names = None if states is None else [state.value for state in states]
        return self._list("experiment", "/experiments", state=names, **_params(query))

    def control_experiment(self, experiment_id: int, action: str) -> None:
        """Do one of: activate, pause, cancel, kill, archive, unarchive, delete."""
        path = f"/experiments/{experiment_id}"
        if action == "delete":
            self._change("DELETE", path, timeout_s=_LONG_S)
        else:
            self._change("POST", f"{path}/control", {"action": action}, timeout_s=_LONG_S)

    def list_trials(self, experiment_id: int, *, limit: int | None = None) -> list[Document]:
        """Return the trials of an experiment by id."""
        path = f"/experiments/{experiment_id}/trials"
        return self._list("listed", path, limit=limit)

    # -- trials -----------------------------------------------------------------------------------

    def control_trial(self, trial_id: int, action: str) -> None:
        """Do one of: cancel, kill."""
        self._change("POST", f"/trials/{trial_id}/control", {"action": action})

    def get_trial(self, trial_id: int) -> Document:
        """Return a trial."""
        return read_document("trial", self._get(f"/trials/{trial_id}"))

    def update_trial(self, trial_id: int, **changes: Unpack[TrialChanges]) -> Document:
        """Change a trial's notes or labels, and return it; None keeps a value."""
        answer = self._change("PATCH", f"/trials/{trial_id}", {**changes}, is_repeatable=True)
        return read_document("trial", answer)

    def list_metrics(self, trial_id: int, kind: str) -> list[Document]:
        """Return the reports of a trial by steps."""
        return self._list("report", f"/trials/{trial_id}/metrics/{kind}")

    def read_log(self, trial_id: int, *, position: int, limit: int) -> Document:
        """Return lines of a trial's log from a position on."""
        params = {"position": position, "limit": limit}
        return read_document("log", self._get(f"/trials/{trial_id}/log", params))

    def download_event_files(self, trial_id: int, folder: str) -> int:
        """Bring the event files in a folder up to date, and return how many there are."""
        path = f"/trials/{trial_id}/event-files"
        files = self._list("file", path)
        for file in files:
            fetch_growth(self._session, f"{_ROOT}{path}/content", file, Path(folder))
        return len(files)

    # -- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> Document:
        """Return a checkpoint by its UUID, or by a beginning of it."""
        return read_document("checkpoint", self._get("/checkpoints", {"uuid": uuid}))

    def list_checkpoints(self, trial_id: int) -> list[Document]:
        """Return the COMPLETED checkpoints of a trial, oldest first."""
        return self._list("checkpoint", f"/trials/{trial_id}/checkpoints")

    def latest_checkpoint(self, trial_id: int) -> Document | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""
        found = self._get(f"/trials/{trial_id}/latest-checkpoint")
        return None if found is None else read_document("checkpoint", found)

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

        def ask(asked: dict[str, Any]) -> list[Document]:
            answer.update(read_document("top", self._get(path, {**params, **asked})))
            found: list[Document] = answer["checkpoints"]
            return found

        found = _read_parts(ask, limit)
        return {**answer, "checkpoints": found}

    def add_checkpoint_metadata(self, uuid: str, metadata: Document) -> Document:
        """Add to a checkpoint's metadata, and return the checkpoint."""
        path = f"{checkpoint_path(uuid)}/metadata"
        return read_document(
            "checkpoint", self._change("PATCH", path, metadata, is_repeatable=True)
        )

    def remove_checkpoint_metadata(self, uuid: str, keys: list[str]) -> Document:
        """Remove keys from a checkpoint's metadata, and return the checkpoint."""
        path = f"{checkpoint_path(uuid)}/metadata/remove"
        sent = {"keys": keys}
        return read_document("checkpoint", self._change("POST", path, sent, is_repeatable=True))

    def delete_checkpoint(self, uuid: str, globs: list[str] | None) -> Document:
        """Delete a checkpoint's files, or those that match, and return the checkpoint."""
        path = checkpoint_path(uuid)
        if globs is None:
            return read_document("checkpoint", self._change("DELETE", path, timeout_s=_LONG_S))
        sent = {"globs": globs}
        answer = self._change("POST", f"{path}/files/remove", sent, timeout_s=_LONG_S)
        return read_document("checkpoint", answer)

    def download_checkpoint(self, uuid: str, folder: str) -> None:
        """Put a checkpoint's files into a folder, unless they are there."""
        from detcore.checkpoint import copy_checkpoint, is_complete_copy

        if not is_complete_copy(Path(folder), uuid):
            storage = HttpStorage(self._session, uuid)
            copy_checkpoint(storage, storage.uuid, Path(folder))

    # -- models -----------------------------------------------------------------------------------

    def create_model(
        self, name: str, description: str, metadata: Document, labels: list[str]
    ) -> Document:
        """Add a model."""
        sent = {"name": name, "description": description, "metadata": metadata, "labels": labels}
        return read_document("model", self._change("POST", "/models", sent))

    def get_model(self, model: str | int) -> Document:
        """Return a model by its name or its id."""
        if isinstance(model, int):
            return read_document("model", self._get(f"/models/{model}"))
        return read_document("model", self._get("/model", {"name": model}))

    def list_models(self, **query: Unpack[ModelQuery]) -> list[Document]:
        """Return models."""
        return self._list("model", "/models", **_params(query))

    def update_model(
        self, model: str | int, *, description: str | None, labels: list[str] | None
    ) -> Document:
        """Change a model's description or labels; None keeps a value."""
        sent = {"description": description, "labels": labels}
        return self._change_model("PATCH", model, "", sent)

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Put a model away, or bring it back."""
        return self._change_model("POST", model, "/archive" if archived else "/unarchive", None)

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return self._change_model("PATCH", model, "/metadata", metadata)

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return self._change_model("POST", model, "/metadata/remove", {"keys": keys})

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions; checkpoints stay."""
        self._change("DELETE", self._model(model))

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **given: Unpack[VersionTexts]
    ) -> Document:
        """Make a checkpoint the next version of a model, and return the version."""
        sent = {"checkpoint_uuid": checkpoint_uuid, **given}
        return read_document(
            "version", self._change("POST", f"{self._model(model)}/versions", sent)
        )

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model, 0 for the latest; None if it does not exist."""
        found = self._get(f"{self._model(model)}/versions/{number}")
        return None if found is None else read_document("version", found)

    def list_versions(self, model: str | int, *, order_by: int) -> list[Document]:
        """Return the versions of a model by number."""
        return self._list("version", f"{self._model(model)}/versions", order_by=order_by)

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model; its checkpoint stays."""
        self._change("DELETE", f"{self._model(model)}/versions/{number}")

    # -- shared -----------------------------------------------------------------------------------

    def records(self) -> Database:
        """Return the server's records, of which everything can be read and nothing changed."""
        return cast("Database", ServerRecords(self._session))

    def _get(self, path: str, params: dict[str, Any] | None = None) -> Any:
        return self._session.request("GET", f"{_ROOT}{path}", params=params)

    def _list(
        self, kind: str, path: str, *, limit: int | None = None, **params: Any
    ) -> list[Document]:
        """Return a list, or its beginning."""

        def ask(asked: dict[str, Any]) -> list[Document]:
            return read_documents(kind, self._get(path, {**params, **asked}))

        return _read_parts(ask, limit)

    def _change(
        self,
        method: str,
        path: str,
        sent: object = None,
        *,
        timeout_s: float | None = None,
        is_repeatable: bool = False,
    ) -> Any:
        return self._session.request(
            method,
            f"{_ROOT}{path}",
            json_body=sent,
            timeout_s=timeout_s,
            is_repeatable=is_repeatable,
        )

    def _change_model(self, method: str, model: str | int, path: str, sent: object) -> Document:
        answer = self._change(method, f"{self._model(model)}{path}", sent, is_repeatable=True)
        return read_document("model", answer)

    def _model(self, model: str | int) -> str:
        """Return the path of a model, which has its number: a name may hold anything."""
        number = model if isinstance(model, int) else self.get_model(model)["id"]
        return f"/models/{number}"


class ServerRecords:
    """The reading methods of `detcore.records.Database`, answered by a server.

    Args:
        session: The connection to the server.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.url = session.url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that asks the server.

        Raises:
            InvalidArgumentError: For a method that changes records.
        """
        from detcore.client.http.remote_reads import READS, plain_arguments, read_result

        if name.startswith("_"):
            raise AttributeError(name)
        if name not in READS:
            raise InvalidArgumentError(
                f"this cannot be done with the records of {self.url} from here ({name}).\n"
                "Type the command where the server runs, without --master and DETCORE_MASTER."
            )

        def ask(*args: Any, **kwargs: Any) -> Any:
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
                    f"{self.url} answered {name} with what this detcore does not understand: "
                    f"{str(error).partition(chr(10))[0]}.\nIs it of another version?"
                ) from error

        return ask

    def open_checkpoint(self, uuid: str) -> HttpStorage:
        """Return the files of a checkpoint, as a storage that can be read.

        Raises:
            NotFoundError: If there is no such checkpoint.
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
    ask: Callable[[dict[str, Any]], list[Document]], limit: int | None
) -> list[Document]:
    """Return entries of a list, in as many parts as the server needs."""
    found: list[Document] = []
    while True:
        size = PARTS if limit is None else min(limit - len(found), PARTS)
        part = ask({"limit": size, "offset": len(found)})
        found += part
        if len(part) < size or len(found) == limit:
            return found


def _params(query: ExperimentQuery | ModelQuery) -> dict[str, Any]:
    """Return a query in the words of the server's routes."""
    return {"label" if name == "labels" else name: value for name, value in query.items()}
