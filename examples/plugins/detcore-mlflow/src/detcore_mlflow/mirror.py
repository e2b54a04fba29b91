"""Mirror a trial to one MLflow run, even if the trial is killed and resumed."""

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
    "PAUSED": "SCHEDULED",  # the trial continues later in the same run
    "ERROR": "FAILED",
    "INVALID_HP": "FAILED",
    "CANCELED": "KILLED",
}
_PER_BATCH = 100  # MLflow's lowest limit: parameters per request
_MAX_NAME_LENGTH = 250
_MAX_VALUE_LENGTH = 500
_KEY_TAG = "detcore.key"


class Mirror:
    """MLflow run of a trial.

    All methods are idempotent: repeating a call with the same event changes nothing.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: TrialInfo) -> None:
        self._trial = trial
        self._folder = Path(trial.trial_dir)
        self._state = read_state(self._folder)
        # If a later process has no such variable, the run stays on the same server.
        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._state.uri
        if not uri:
            raise UnavailableError(
                "MLFLOW_TRACKING_URI is not set, so trials cannot be mirrored.\n"
                "Set it, or disable the plugin with DETCORE_DISABLE_PLUGINS=mlflow"
            )
        self._uri = uri
        self._server = MlflowServer(uri)

    def start(self, event: EventInfo) -> None:
        """Create the run, or mark an existing run as running."""
        run_id = self._open_run(event)
        params = _to_pairs(_flatten(self._trial.hparams))
        for start in range(0, len(params), _PER_BATCH):
            self._log_batch(run_id, params=params[start : start + _PER_BATCH])
        self._log_batch(run_id, tags=self._make_tags())
        self._server.post("runs/update", {"run_id": run_id, "status": "RUNNING"})

    def log_metrics(self, step: int, metrics: Mapping[str, float], event: EventInfo) -> None:
        """Log metrics with the time and step of the report."""
        run_id = self._open_run(event)
        timestamp = int(event.time * 1000)
        entries = [
            {
                "key": _clean_name(key),
                "value": _encode_number(value),
                "timestamp": timestamp,
                "step": step,
            }
            for key, value in metrics.items()
        ]
        if event.is_repeat:
            # Servers with a database ignore repeated metrics. Servers with a directory do not.
            entries = [entry for entry in entries if not self._has_metric(run_id, entry)]
        for start in range(0, len(entries), _PER_BATCH):
            self._log_batch(run_id, metrics=entries[start : start + _PER_BATCH])

    def record_checkpoint(self, checkpoint: CheckpointSaved, event: EventInfo) -> None:
        """Record a checkpoint as a tag, and upload its files if DETCORE_MLFLOW_UPLOAD is 1."""
        note = {
            "url": checkpoint.url,
            "steps_completed": checkpoint.steps_completed,
            "size_bytes": checkpoint.size_bytes,
        }
        tags = {
            f"detcore.checkpoint.{checkpoint.uuid}": json.dumps(note),
            "detcore.latest_checkpoint": checkpoint.uuid,
        }
        run_id = self._open_run(event)
        self._log_batch(run_id, tags=_to_pairs(tags.items()))
        if os.environ.get("DETCORE_MLFLOW_UPLOAD") == "1":
            self._upload_files(run_id, checkpoint)

    def finish(self, state: str, error: str | None, event: EventInfo) -> None:
        """Record the state of an ended or paused trial."""
        run_id = self._open_run(event)
        tags = {"detcore.state": state, "detcore.error": (error or "-")[:_MAX_VALUE_LENGTH]}
        self._log_batch(run_id, tags=_to_pairs(tags.items()))
        change: dict[str, Any] = {"run_id": run_id, "status": _STATUS.get(state, "FAILED")}
        if state != "PAUSED":
            change["end_time"] = int(event.time * 1000)
        self._server.post("runs/update", change)

    # -- the run ----------------------------------------------------------------------------------

    def _log_batch(self, run_id: str, **items: Sequence[Mapping[str, Any]]) -> None:
        self._server.post("runs/log-batch", {"run_id": run_id, **items})

    def _has_metric(self, run_id: str, metric: Mapping[str, Any]) -> bool:
        """Whether the metric's history contains an entry."""
        query = {"run_id": run_id, "metric_key": metric["key"], "max_results": "25000"}
        while True:
            page = self._server.get("metrics/get-history", **query)
            for entry in page.get("metrics", ()):
                key = (int(entry["timestamp"]), int(entry.get("step", 0)))
                if key == (metric["timestamp"], metric["step"]):
                    return True
            if not page.get("next_page_token"):
                return False
            query["page_token"] = page["next_page_token"]

    def _open_run(self, event: EventInfo) -> str:
        """Return the id of the run, and create the run if necessary."""
        if self._state.run_id is None or self._state.uri != self._uri:
            run_id = self._find_or_create(event)
            self._state = State(key=self._state.key, uri=self._uri, run_id=run_id)
            write_state(self._folder, self._state)
        assert self._state.run_id is not None  # set above
        return self._state.run_id

    def _find_or_create(self, event: EventInfo) -> str:
        """Return the run with this trial's key, or create it.

        The key is written to disk before the run is created. If a process dies between creating the
        run and storing its id, the next process finds the run by its key.
        """
        experiment_id = self._open_experiment()
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

    def _open_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(
            self._trial.config.get("name") or "detcore"
        )
        experiment_id = self._find_experiment(name)
        if experiment_id is None:
            try:
                return str(self._server.post("experiments/create", {"name": name})["experiment_id"])
            except RefusedError as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment_id = self._find_experiment(name)  # another trial has created it
        return str(experiment_id)

    def _find_experiment(self, name: str) -> str | None:
        try:
            response = self._server.get("experiments/get-by-name", experiment_name=name)
        except RefusedError as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return str(response["experiment"]["experiment_id"])

    def _make_tags(self) -> list[dict[str, str]]:
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
        return _to_pairs(values.items())

    def _upload_files(self, run_id: str, checkpoint: CheckpointSaved) -> None:
        folder = checkpoint.path
        if folder is None or not folder.is_dir():
            raise FileNotFoundError(
                f"checkpoint {checkpoint.uuid} is not uploaded, because {checkpoint.url} is not a "
                "local directory"
            )
        run = self._server.get("runs/get", run_id=run_id)["run"]
        scheme, _, root = str(run["info"]["artifact_uri"]).partition(":")
        if scheme != "mlflow-artifacts":
            raise RefusedError(
                f"checkpoint {checkpoint.uuid} is not uploaded: MLflow at {self._uri} does not "
                f"serve artifacts ({run['info']['artifact_uri']}).\n"
                "Start MLflow with --artifacts-destination, or unset DETCORE_MLFLOW_UPLOAD."
            )
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = f"checkpoints/{checkpoint.uuid}/{file.relative_to(folder).as_posix()}"
            self._server.put_artifact(quote(f"{root.strip('/')}/{name}"), file)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values of hyperparameters, with dotted names for nested values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield _clean_name(f"{prefix}{key}"), value


def _to_pairs(values: Iterable[tuple[str, Any]]) -> list[dict[str, str]]:
    """Convert parameters or tags to the API format."""
    return [{"key": key, "value": str(value)[:_MAX_VALUE_LENGTH]} for key, value in values]


def _encode_number(value: float) -> float | str:
    """Encode a metric as JSON, with strings for NaN and infinities."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _clean_name(text: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII)[:_MAX_NAME_LENGTH]
