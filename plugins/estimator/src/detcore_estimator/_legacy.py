"""Recognize the origin of a checkpoint's folder: detcore, Determined's estimators, or other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError

__all__ = ["check_is_estimator_checkpoint"]

_FRAMEWORK = "estimator"
_TRIAL_TYPE = "EstimatorTrial"
_FORMAT = "saved_model"


def check_is_estimator_checkpoint(folder: Path) -> None:
    """Refuse folders that are not a checkpoint of an ``EstimatorTrial``.

    Reads descriptions in JSON only. A checkpoint of Determined has ``load_data.json``, or only
    ``metadata.json``; its pickles (``rng_state.pkl``, ``workload_sequencer.pkl``) are not opened. A
    folder without any description passes: later steps find the needed files or fail.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
        InvalidCheckpointError: If it describes a checkpoint of something else, or its description
            cannot be read.
    """
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}.\n"
            "The path is that of a checkpoint's folder, with model.ckpt-N.index in it.\n"
            "  detcore checkpoint download UUID"
        )
    own = _read(folder / "trial.json")
    if own is not None:
        if own.get("framework") != _FRAMEWORK:
            raise _other(
                folder,
                f"of the framework {own.get('framework')!r} (trial class {own.get('trial_class')})",
            )
        return
    load_data = _read(folder / "load_data.json")
    if load_data is not None:
        if load_data.get("trial_type", _TRIAL_TYPE) != _TRIAL_TYPE:
            raise _other(folder, f"of a {load_data['trial_type']} of Determined")
        return
    metadata = _read(folder / "metadata.json") or {}
    if metadata.get("format", _FORMAT) != _FORMAT:
        kind = f"with the format {metadata['format']!r} (framework {metadata.get('framework')!r})"
        raise _other(folder, kind)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise InvalidCheckpointError(
            f"{path} is damaged: it holds a {type(value).__name__}, not an object"
        )
    return value


def _other(folder: Path, kind: str) -> InvalidCheckpointError:
    return InvalidCheckpointError(
        f"{folder} is a checkpoint {kind}, not of an EstimatorTrial.\n"
        "Each framework's plugin loads its own checkpoints."
    )
