"""Identity of a trial's MLflow run, stored in the trial's directory."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Identity of a trial's MLflow run.

    Attributes:
        key: Tag that identifies the run, created before the run.
        uri: URI of the server.
        run_id: MLflow's run id, or None before the run is created.
    """

    key: str
    uri: str | None = None
    run_id: str | None = None


def read_state(trial_dir: Path) -> State:
    """Read the state, or create and write a state with a new key."""
    path = _state_path(trial_dir)
    if path.exists():
        return State(**json.loads(path.read_text(encoding="utf-8")))
    state = State(key=uuid.uuid4().hex)
    write_state(trial_dir, state)
    return state


def write_state(trial_dir: Path, state: State) -> None:
    """Write the state atomically."""
    path = _state_path(trial_dir)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")
    os.replace(draft, path)


def _state_path(trial_dir: Path) -> Path:
    return Path(trial_dir) / "mlflow.json"
