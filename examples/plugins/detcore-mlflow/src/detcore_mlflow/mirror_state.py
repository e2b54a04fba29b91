"""Which MLflow run mirrors a trial: a small file in the trial's folder."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of a trial's mirror.

    Attributes:
        key: Tag by which its run is found again; made before the run is.
        uri: Where it is.
        run_id: MLflow's identifier of the run, or None before it is known.
    """

    key: str
    uri: str | None = None
    run_id: str | None = None


def read_state(trial_dir: Path) -> State:
    """Return what is known; a new key, which is written first, where nothing is."""
    path = _path(trial_dir)
    if path.exists():
        return State(**json.loads(path.read_text(encoding="utf-8")))
    state = State(key=uuid.uuid4().hex)
    write_state(trial_dir, state)
    return state


def write_state(trial_dir: Path, state: State) -> None:
    """Write it, all or nothing."""
    path = _path(trial_dir)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")
    os.replace(draft, path)


def _path(trial_dir: Path) -> Path:
    return Path(trial_dir) / "mlflow.json"
