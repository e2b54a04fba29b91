"""Load the weights of a checkpoint into a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidModelError, describe
from detcore.trial import find_checkpoint_directory
from detcore_keras.frameworks import keras
from detcore_keras.state.determined_checkpoint import check_legacy, load_legacy_weights
from detcore_keras.state.input_spec import build_from_record
from detcore_keras.state.training_state import VARIABLES_FILE, read_variables, restore_weights


def load_weights_from_checkpoint_path(path: str | os.PathLike[str], model: Any) -> Any:
    """Load the weights of a checkpoint into a model of the caller.

    Runs no code from the checkpoint.

    Args:
        path: The checkpoint's directory.
        model: A Keras model with the same structure as the trial's model. Layer numbers may differ
            (``dense_1`` for ``dense``).

    Returns:
        The same model.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If the directory is not a checkpoint of a ``TFKerasTrial``, or does
            not fit the model. The model then stays unchanged.
        InvalidModelError: If `model` is not a Keras model.
    """
    folder = find_checkpoint_directory(path)
    if not isinstance(model, keras.Model):
        raise InvalidModelError(
            f"load_weights_from_checkpoint_path received {describe(model)}, not a Keras model"
        )
    load_weights(model, folder)
    return model


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights of a checkpoint of detcore or Determined from a local directory.

    Raises:
        InvalidCheckpointError: If the checkpoint does not fit the model. The model then stays
            unchanged.
    """
    is_legacy = not (folder / VARIABLES_FILE).exists()
    if is_legacy:
        check_legacy(folder)
    if not build_from_record(model, {} if is_legacy else read_variables(folder)):
        raise InvalidCheckpointError(
            f"the first call of {type(model).__name__} creates its weights, but the checkpoint in "
            f"{folder} has no specification of its inputs.\n"
            "Call the model on a batch first, then load the weights:\n"
            "  detcore_keras.load_weights_from_checkpoint_path(path, model)"
        )
    if is_legacy:
        load_legacy_weights(model, folder)
    else:
        restore_weights(model, folder)
