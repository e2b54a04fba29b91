"""One trial as one MLflow run, whatever its processes went through."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from detcore.errors import UnavailableError
from detcore_mlflow.mirror_state import State, read_state, write_state
from detcore_mlflow.mlflow_server import MlflowServer, RefusedError

if TYPE_CHECKING:
    from detcore.plugins import CheckpointSaved, EventInfo
    from detcore.types import TrialInfo


_STATUS = {
    "COMPLETED": "FINISHED",
    "PAUSED": "SCHEDULED",  # it goes on later, in this very run
    "ERROR": "FAILED",
    "INVALID_HP": "FAILED",
    "CANCELED": "KILLED",
}
_PER_BATCH = 100  # the lowest of MLflow's limits: parameters per request
_MAX_NAME_LENGTH = 250
_MAX_VALUE_LENGTH = 500
_KEY_TAG = "detcore.key"


class Mirror:
    """The MLflow run of a trial.

    Every method may be called again with the same event: MLflow then is as after one call.

    Args:
        trial: Which trial.
    """

    def __init__(self, trial: TrialInfo) -> None:
        self._trial = trial
        self._folder = Path(trial.trial_dir)
        self._state = read_state(self._folder)
        # A later process may not have the variable; then the run is where it was.
        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._state.uri
        if not uri:
            raise UnavailableError(
                "MLFLOW_TRACKING_URI is not set: there is nowhere to mirror trials to.\n"
                "Set it, or switch the plugin off: DETCORE_DISABLE_PLUGINS=mlflow"
            )
        self._uri = uri
        self._server = MlflowServer(uri)

    def start(self, event: EventInfo) -> None:
        """Make the run, or say that it goes on."""
        run_id = self._open(event)
        params = _pairs(_flatten(self._trial.hparams))
        for start in range(0, len(params), _PER_BATCH):
            self._log(run_id, params=params[start : start + _PER_BATCH])
        self._log(run_id, tags=self._tags())
        self._server.post("runs/update", {"run_id": run_id, "status": "RUNNING"})

    def log_metrics(self, step: int, metrics: Mapping[str, float], event: EventInfo) -> None:
        """Log metrics with the time and step of their report."""
        run_id = self._open(event)
        moment = int(event.time * 1000)
        found = [
            {"key": _name(key), "value": _number(value), "timestamp": moment, "step": step}
            for key, value in metrics.items()
        ]
        if event.is_repeat:
            # A server with a database knows a repeated metric by itself; with a folder it does not.
            found = [metric for metric in found if not self._has(run_id, metric)]
        for start in range(0, len(found), _PER_BATCH):
            self._log(run_id, metrics=found[start : start + _PER_BATCH])

    def note_checkpoint(self, checkpoint: CheckpointSaved, event: EventInfo) -> None:
        """Note a checkpoint as a tag; upload its files where that is asked for."""
        note = {
            "url": checkpoint.url,
            "steps_completed": checkpoint.steps_completed,
            "size_bytes": checkpoint.size_bytes,
        }
        tags = {
            f"detcore.checkpoint.{checkpoint.uuid}": json.dumps(note),
            "detcore.latest_checkpoint": checkpoint.uuid,
        }
        run_id = self._open(event)
        self._log(run_id, tags=_pairs(tags.items()))
        if os.environ.get("DETCORE_MLFLOW_UPLOAD") == "1":
            self._upload(run_id, checkpoint)

    def finish(self, state: str, error: str | None, event: EventInfo) -> None:
        """Say how the trial ended, or that it pauses."""
        run_id = self._open(event)
        tags = {"detcore.state": state, "detcore.error": (error or "-")[:_MAX_VALUE_LENGTH]}
        self._log(run_id, tags=_pairs(tags.items()))
        change: dict[str, Any] = {"run_id": run_id, "status": _STATUS.get(state, "FAILED")}
        if state != "PAUSED":
            change["end_time"] = int(event.time * 1000)
        self._server.post("runs/update", change)

    # -- the run ----------------------------------------------------------------------------------

    def _log(self, run_id: str, **items: Sequence[Mapping[str, Any]]) -> None:
        self._server.post("runs/log-batch", {"run_id": run_id, **items})

    def _has(self, run_id: str, metric: Mapping[str, Any]) -> bool:
        """Whether a metric is in its history."""
        query = {"run_id": run_id, "metric_key": metric["key"], "max_results": "25000"}
        while True:
            page = self._server.get("metrics/get-history", **query)
            for known in page.get("metrics", ()):
                place = (int(known["timestamp"]), int(known.get("step", 0)))
                if place == (metric["timestamp"], metric["step"]):
                    return True
            if not page.get("next_page_token"):
                return False
            query["page_token"] = page["next_page_token"]

    def _open(self, event: EventInfo) -> str:
        """Return the run, which is made where there is none."""
        if self._state.run_id is None or self._state.uri != self._uri:
            run_id = self._find_or_create(event)
            self._state = State(key=self._state.key, uri=self._uri, run_id=run_id)
            write_state(self._folder, self._state)
        assert self._state.run_id is not None  # narrowing: just set
        return self._state.run_id

    def _find_or_create(self, event: EventInfo) -> str:
        """Return the run with this trial's key: a process may have died between making and noting.

        The key is on the disk before the run is made.
        """
        experiment_id = self._experiment()
        query = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{_KEY_TAG}` = '{self._state.key}'",
            "max_results": 1,
        }
        runs = self._server.post("runs/search", query).get("runs")
        if runs:
            return str(runs[0]["info"]["run_id"])
        body = {
            "experiment_id": experiment_id,
            "run_name": f"trial-{self._trial.trial_id}",
            "start_time": int(event.time * 1000),
            "tags": [{"key": _KEY_TAG, "value": self._state.key}],
        }
        return str(self._server.post("runs/create", body)["run"]["info"]["run_id"])

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(
            self._trial.config.get("name") or "detcore"
        )
        found = self._find_experiment(name)
        if found is None:
            try:
                return str(self._server.post("experiments/create", {"name": name})["experiment_id"])
            except RefusedError as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._find_experiment(name)  # another trial was faster
        return str(found)

    def _find_experiment(self, name: str) -> str | None:
        try:
            found = self._server.get("experiments/get-by-name", experiment_name=name)
        except RefusedError as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return str(found["experiment"]["experiment_id"])

    def _tags(self) -> list[dict[str, str]]:
        trial = self._trial
        values = {
            "detcore.experiment_id": trial.experiment_id,
            "detcore.trial_id": trial.trial_id,
            "detcore.run_id": trial.run_id,
            "detcore.trial_seed": trial.trial_seed,
            "detcore.state": "RUNNING",
            "detcore.error": "-",
            "mlflow.source.name": trial.config.get("entrypoint") or trial.model_dir,
        }
        return _pairs(values.items())

    def _upload(self, run_id: str, checkpoint: CheckpointSaved) -> None:
        folder = checkpoint.path
        if folder is None or not folder.is_dir():
            raise FileNotFoundError(
                f"checkpoint {checkpoint.uuid} is not uploaded: {checkpoint.url} is no folder here"
            )
        run = self._server.get("runs/get", run_id=run_id)["run"]
        scheme, _, root = str(run["info"]["artifact_uri"]).partition(":")
        if scheme != "mlflow-artifacts":
            raise RefusedError(
                f"checkpoint {checkpoint.uuid} is not uploaded: MLflow at {self._uri} does not "
                f"keep artifacts itself ({run['info']['artifact_uri']}).\n"
                "Start it with --artifacts-destination, or unset DETCORE_MLFLOW_UPLOAD."
            )
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = f"checkpoints/{checkpoint.uuid}/{file.relative_to(folder).as_posix()}"
            self._server.put_artifact(quote(f"{root.strip('/')}/{name}"), file)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and texts of hyperparameters; those in dictionaries under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield _name(f"{prefix}{key}"), value


def _pairs(values: Iterable[tuple[str, Any]]) -> list[dict[str, str]]:
    """Return parameters or tags as the server takes them."""
    return [{"key": key, "value": str(value)[:_MAX_VALUE_LENGTH]} for key, value in values]


def _number(value: float) -> float | str:
    """Return a metric as JSON: what it has no number for as a word."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _name(text: str) -> str:
    """Return a name as MLflow allows it."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII)[:_MAX_NAME_LENGTH]
