"""Load a model from a checkpoint, for prediction or further work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidModelError, describe
from detcore.trial import checkpoint_folder, made_from_code, read_trial_file
from detcore_keras.frameworks import keras
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.state.determined_checkpoint import (
    LOAD_INSTEAD,
    check_legacy,
    load_legacy_weights,
    names_of_the_earlier_system,
    read_legacy_trial,
)
from detcore_keras.state.input_spec import build_from_spec, spec_from_json
from detcore_keras.state.training_state import VARIABLES_FILE, read_variables_file, restore_weights

_TRIAL_FILE = "trial.json"
_FRAMEWORK = "keras"
_SCRIPT_TRIAL = "detcore_keras.native_fit:NativeTrial"


def load_model_from_checkpoint_path(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None
) -> Any:
    """Build a trial's model and load the weights of a checkpoint into it.

    **This runs code from the checkpoint**: the trial class in its folder ``code/`` is imported and
    its ``__init__`` and ``build_model`` are called. Load only checkpoints of people you trust, or
    use `load_weights_from_checkpoint_path` with your own model, which runs no such code. The code
    runs with that folder as the current one; ``sys.path``, ``sys.modules`` and the current folder
    are restored afterwards.

    Checkpoints of Determined 0.13.8 to 0.17 (``TFKerasTrial``) are supported, too, and those of
    0.12 and 0.13 in HDF5 form; none of their pickles is loaded.

    Args:
        path: The checkpoint's folder, such as ``detcore checkpoint download`` makes.
        tags: Not used; accepted for compatibility.

    Returns:
        The Keras model that ``build_model`` compiled, with the weights. Its optimizer is fresh.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
        InvalidCheckpointError: If it is not a checkpoint of a ``TFKerasTrial``, or does not fit the
            model that its code builds. Also for the checkpoint of a script that called
            ``detcore_keras.init``: it has no ``build_model``.
    """
    folder = checkpoint_folder(path)
    if not (folder / _TRIAL_FILE).exists():
        check_legacy(folder)
        model = _build(folder, *read_legacy_trial(folder), names_of_the_earlier_system())
        return _with_legacy_weights(model, folder)
    record = read_trial_file(folder, _FRAMEWORK)
    if record["trial_class"] == _SCRIPT_TRIAL:
        raise InvalidCheckpointError(
            f"{folder} is a checkpoint of a script, which builds its model without a trial class.\n"
            f"{LOAD_INSTEAD}"
        )
    model = _build(folder, record["trial_class"], record["config"])
    _load_own(model, folder)
    return model


def load_weights_from_checkpoint_path(path: str | os.PathLike[str], model: Any) -> Any:
    """Load the weights of a checkpoint into a model of the caller.

    Runs no code from the checkpoint.

    Args:
        path: The checkpoint's folder.
        model: A Keras model of the same structure as the trial's. Layers may be numbered otherwise
            (``dense_1`` for ``dense``).

    Returns:
        The same model.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
        InvalidCheckpointError: If it is not a checkpoint of a ``TFKerasTrial``, or does not fit the
            model; the model stays unchanged.
        InvalidModelError: If `model` is not a Keras model.
    """
    folder = checkpoint_folder(path)
    if not isinstance(model, keras.Model):
        raise InvalidModelError(
            f"load_weights_from_checkpoint_path was given {describe(model)}, not a Keras model"
        )
    if (folder / VARIABLES_FILE).exists():
        _load_own(model, folder)
        return model
    check_legacy(folder)
    return _with_legacy_weights(model, folder)


def _build(
    folder: Path,
    entrypoint: str,
    config: Mapping[str, Any],
    aliases: Mapping[str, ModuleType] | None = None,
) -> Any:
    """Import the trial class from the checkpoint and let it build its model."""
    context = TFKerasTrialContext.from_config(config)
    with made_from_code(
        folder, entrypoint, context, instead=LOAD_INSTEAD, aliases=aliases
    ) as trial:
        returned = trial.build_model()
    model = context.wrapped_models[-1] if returned is None and context.wrapped_models else returned
    if not isinstance(model, keras.Model):
        raise InvalidModelError(
            f"build_model of {entrypoint!r} returned {describe(returned)}, which is not a Keras "
            "model, and wrapped none with context.wrap_model"
        )
    return model


def _load_own(model: Any, folder: Path) -> None:
    record = read_variables_file(folder)
    if not model.built:
        spec = spec_from_json(record.get("input_spec"))
        if spec is None:
            raise InvalidCheckpointError(
                f"the weights of {type(model).__name__} are made by its first call, and the "
                f"checkpoint in {folder} does not say what its inputs are.\n"
                "Call the model on a batch first, then load the weights into it:\n"
                "  detcore_keras.load_weights_from_checkpoint_path(path, model)"
            )
        build_from_spec(model, spec)
    restore_weights(model, folder)


def _with_legacy_weights(model: Any, folder: Path) -> Any:
    if not model.built:
        raise InvalidCheckpointError(
            f"the weights of {type(model).__name__} are made by its first call, and checkpoints of "
            "Determined do not say what its inputs are.\n"
            "Build the model, call it on a batch, then load the weights into it:\n"
            "  detcore_keras.load_weights_from_checkpoint_path(path, model)"
        )
    load_legacy_weights(model, folder)
    return model
