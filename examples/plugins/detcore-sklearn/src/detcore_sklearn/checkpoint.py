"""Checkpoint files of an estimator: ``estimator.json`` and ``arrays.npz``."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from detcore.errors import InvalidCheckpointError

from detcore_sklearn.estimator_state import Arrays, Encoder, decode
from detcore_sklearn.estimators import DERIVED, check_estimator, find_estimator_class

STATE_FILE = "estimator.json"
ARRAYS_FILE = "arrays.npz"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copy of an estimator's state as JSON values and arrays.

    Attributes:
        estimator: Name of the estimator's class.
        parameters: Encoded constructor parameters.
        fitted: Encoded fitted attributes.
        training: Step and random state of the controller.
        arrays: Arrays in all of these fields, by name.
    """

    estimator: str
    parameters: Any
    fitted: Any
    training: Mapping[str, Any]
    arrays: Arrays

    def write(self, directory: Path) -> None:
        """Write both checkpoint files."""
        fields = {
            "version": _VERSION,
            "estimator": self.estimator,
            "parameters": self.parameters,
            "fitted": self.fitted,
            "training": self.training,
        }
        text = json.dumps(fields, indent=1)
        (directory / STATE_FILE).write_text(text + "\n", encoding="utf-8")
        arrays: dict[str, Any] = dict(self.arrays)
        np.savez(directory / ARRAYS_FILE, **arrays)

    def apply_to(self, model: Any) -> None:
        """Restore the state of an estimator of the same class.

        Raises:
            InvalidCheckpointError: If the estimator has another class.
        """
        name = check_estimator(model)
        if name != self.estimator:
            raise InvalidCheckpointError(
                f"the checkpoint contains a {self.estimator}, but build_model returns a {name}.\n"
                "Resume with the trial class that wrote the checkpoint."
            )
        parameters = decode(self.parameters, self.arrays)
        # Training changes only generator parameters. The trial sets all other parameters.
        for key, value in parameters.items():
            if isinstance(value, np.random.RandomState):
                setattr(model, key, value)
        vars(model).update(decode(self.fitted, self.arrays))


def take_snapshot(model: Any, training: Mapping[str, Any]) -> Snapshot:
    """Copy an estimator's state and the controller's training state."""
    encoder = Encoder()
    parameters = model.get_params(deep=False)
    fitted = {
        name: value
        for name, value in vars(model).items()
        if name not in parameters and name not in DERIVED
    }
    return Snapshot(
        estimator=check_estimator(model),
        parameters=encoder.encode_mapping(parameters, "parameters."),
        fitted=encoder.encode_mapping(fitted),
        training=training,
        arrays=encoder.arrays,
    )


def read_snapshot(directory: Path) -> Snapshot:
    """Read the files written by `Snapshot.write`.

    Raises:
        InvalidCheckpointError: If the files are missing, damaged or of another version.
    """
    try:
        fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        # np.load would leave a file that is not an archive open.
        with (
            open(directory / ARRAYS_FILE, "rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidCheckpointError(
            f"cannot read an estimator from {directory}: {error}.\n"
            f"The directory must contain valid files {STATE_FILE} and {ARRAYS_FILE}."
        ) from error
    if not isinstance(fields, dict) or fields.pop("version", None) != _VERSION:
        raise InvalidCheckpointError(
            f"{directory / STATE_FILE} does not have version {_VERSION}.\n"
            "Load the checkpoint with the version of detcore-sklearn that wrote it."
        )
    try:
        return Snapshot(arrays=arrays, **fields)
    except TypeError as error:
        raise InvalidCheckpointError(f"{directory / STATE_FILE} is damaged: {error}") from error


def load_model(path: str) -> Any:
    """Return the estimator in a checkpoint, without running the trial's code.

    Args:
        path: Checkpoint directory.

    Raises:
        InvalidCheckpointError: If the directory contains no readable estimator.
    """
    snapshot = read_snapshot(Path(path))
    model = find_estimator_class(snapshot.estimator)(**decode(snapshot.parameters, snapshot.arrays))
    snapshot.apply_to(model)
    return model
