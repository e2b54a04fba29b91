"""The file that names the trial of a run, to be read long after it."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.errors import RunError
from detcore.types import TrialInfo

__all__ = ["read_run", "run_path", "write_run"]


def write_run(info: TrialInfo) -> Path:
    """Write the file that says which trial a run is of; return its path."""
    path = run_path(info)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    # The configuration may hold credentials: no other user may read it.
    descriptor, beside = tempfile.mkstemp(prefix=".run-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(fields, file, indent=2, default=_plain)
        # At once: of several workers on this machine, one may read it already.
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    return path


def run_path(info: TrialInfo) -> Path:
    """Return the path of the file that says which trial a run is of."""
    return _path(Path(info.trial_dir), info.run_id)


def read_run(trial_dir: Path, run_id: int) -> TrialInfo:
    """Read which trial a run was of; its folder may have been moved since.

    Raises:
        RunError: If the file is missing or cannot be used.
    """
    path = _path(trial_dir, run_id)
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(TrialInfo)}
        # Observers do not need the fields that a later release added.
        told = {name: value for name, value in fields.items() if name in known}
        return TrialInfo(**{**told, "trial_dir": str(trial_dir)})
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path} does not say which trial run {run_id} was of: {error}") from error


def _plain(value: object) -> Any:
    """Return a value that JSON has no form for as one that it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _path(trial_dir: Path, run_id: int) -> Path:
    return Path(trial_dir) / f"run-{run_id}.json"
