"""Load a model from a checkpoint, for prediction or further work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidModelError, describe
from detcore.trial import create_trial_from_code, find_checkpoint_directory, read_trial_file
from detcore_keras.frameworks import keras
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.state.determined_checkpoint import (
    LOAD_INSTEAD,
    check_legacy,
    make_aliases,
    read_legacy_trial,
)
from detcore_keras.state.load_weights import load_weights

_TRIAL_FILE = "trial.json"
_SCRIPT_TRIAL = "detcore_keras.native_fit:NativeTrial"


def load_model_from_checkpoint_path(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None
) -> Any:
    """Build a trial's model and load the weights of a checkpoint into it.

    **This runs code from the checkpoint.** It imports the trial class from the checkpoint's
    directory ``code/``, and calls its ``__init__`` and ``build_model``. Load only checkpoints of
    people you trust, or use `load_weights_from_checkpoint_path` with your own model, which runs no
    code from the checkpoint. While the code runs, ``code/`` is the current directory.
    ``sys.path``, ``sys.modules`` and the current directory are restored afterwards.

    Checkpoints of Determined 0.13.8 to 0.17 (``TFKerasTrial``), and HDF5 checkpoints of 0.12 and
    0.13, are also supported. None of their pickles is loaded.

    Args:
        path: The checkpoint's directory, such as from ``detcore checkpoint download``.
        tags: Ignored; accepted for compatibility.

    Returns:
        The Keras model that ``build_model`` compiled, with the weights. Its optimizer is fresh.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If the directory is not a checkpoint of a ``TFKerasTrial``, or does
            not fit the model that its code builds. Also for checkpoints of scripts that called
            ``detcore_keras.init``, which have no ``build_model``.
    """
    folder = find_checkpoint_directory(path)
    if not (folder / _TRIAL_FILE).exists():
        check_legacy(folder)
        model = _build_model(folder, *read_legacy_trial(folder), make_aliases())
    else:
        record = read_trial_file(folder, "keras")
        if record["trial_class"] == _SCRIPT_TRIAL:
            raise InvalidCheckpointError(
                f"{folder} is the checkpoint of a script, which builds its model without a trial "
                f"class.\n{LOAD_INSTEAD}"
            )
        model = _build_model(folder, record["trial_class"], record["config"])
    load_weights(model, folder)
    return model


def _build_model(
    folder: Path,
    entrypoint: str,
    config: Mapping[str, Any],
    aliases: Mapping[str, ModuleType] | None = None,
) -> Any:
    """Import the trial class from the checkpoint and let it build its model."""
    context = TFKerasTrialContext.from_config(config)
    with create_trial_from_code(
        folder, entrypoint, context, instead=LOAD_INSTEAD, aliases=aliases
    ) as trial:
        returned = trial.build_model()
    model = context.wrapped_models[-1] if returned is None and context.wrapped_models else returned
    if not isinstance(model, keras.Model):
        raise InvalidModelError(
            f"build_model of {entrypoint!r} returned {describe(returned)}, which is not a Keras "
            "model, and did not call context.wrap_model"
        )
    return model
