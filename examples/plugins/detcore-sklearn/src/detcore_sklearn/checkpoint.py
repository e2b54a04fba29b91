"""An estimator in a folder: ``estimator.json`` and ``arrays.npz``."""

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
from detcore_sklearn.estimators import DERIVED, check_estimator, estimator_class

STATE_FILE = "estimator.json"
ARRAYS_FILE = "arrays.npz"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """An estimator as it was at one moment, as JSON values and arrays.

    Attributes:
        estimator: Name of its class.
        parameters: What it was made with, encoded.
        fitted: What it has learned, encoded.
        training: What the controller keeps besides.
        arrays: The arrays in all of them.
    """

    estimator: str
    parameters: Any
    fitted: Any
    training: Mapping[str, Any]
    arrays: Arrays

    def write(self, directory: Path) -> None:
        """Write both files."""
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

    def put_into(self, model: Any) -> None:
        """Give an estimator of the same class what was learned.

        Raises:
            InvalidCheckpointError: If it is of another class.
        """
        name = check_estimator(model)
        if name != self.estimator:
            raise InvalidCheckpointError(
                f"the checkpoint holds a {self.estimator}, and build_model returns a {name}.\n"
                "Resume with the trial class that wrote it."
            )
        parameters = decode(self.parameters, self.arrays)
        # A generator that was given as a parameter has moved on; the rest is the trial's business.
        for key, value in parameters.items():
            if isinstance(value, np.random.RandomState):
                setattr(model, key, value)
        vars(model).update(decode(self.fitted, self.arrays))


def take_snapshot(model: Any, training: Mapping[str, Any]) -> Snapshot:
    """Copy an estimator's state, and what goes with it."""
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
    """Read what `Snapshot.write` wrote.

    Raises:
        InvalidCheckpointError: If it is not there, or is of another version.
    """
    try:
        fields = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        # Opened here, for np.load leaves a file open that is no archive.
        with (
            open(directory / ARRAYS_FILE, "rb") as file,
            np.load(file, allow_pickle=False) as saved,
        ):
            arrays = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidCheckpointError(
            f"{directory} holds no estimator that can be read: {error}.\n"
            f"It needs the files {STATE_FILE} and {ARRAYS_FILE}."
        ) from error
    if not isinstance(fields, dict) or fields.pop("version", None) != _VERSION:
        raise InvalidCheckpointError(
            f"{directory / STATE_FILE} is not of version {_VERSION}.\n"
            "Load it with the version of detcore-sklearn that wrote it."
        )
    try:
        return Snapshot(arrays=arrays, **fields)
    except TypeError as error:
        raise InvalidCheckpointError(f"{directory / STATE_FILE} is damaged: {error}") from error


def load_model(path: str) -> Any:
    """Return the estimator of a checkpoint; no code of the trial is needed, and none is run.

    Args:
        path: The checkpoint's folder.

    Raises:
        InvalidCheckpointError: If there is none in it.
    """
    snapshot = read_snapshot(Path(path))
    model = estimator_class(snapshot.estimator)(**decode(snapshot.parameters, snapshot.arrays))
    snapshot.put_into(model)
    return model
