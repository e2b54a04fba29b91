"""Load a model from a checkpoint, for prediction or further work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from detcore.trial import create_trial_from_code, find_checkpoint_directory, read_trial_file
from detcore_torch.pytorch_context import PyTorchTrialContext
from detcore_torch.state.shared_state import load_models

_FRAMEWORK = "torch"
_INSTEAD = """\
Make the model yourself, and load the weights into it:
  detcore_torch.load_weights_from_checkpoint_path(path, model)"""


def load_model_from_checkpoint_path(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None, map_location: Any = None
) -> Any:
    """Build a trial's model and load the weights of a checkpoint into it.

    **This runs code from the checkpoint**: see `load_trial_from_checkpoint_path`.

    Args:
        path: The checkpoint's folder.
        tags: Not used; accepted for compatibility.
        map_location: The device of the model, such as ``"cpu"``; None: this process's GPU if there
            is one, else the CPU.

    Returns:
        The model that the trial wrapped, in evaluation mode; a tuple if it wrapped several.
    """
    models = load_trial_from_checkpoint_path(path).context.models
    for model in models:
        model.eval()
        if map_location is not None:
            model.to(map_location)
    return models[0] if len(models) == 1 else tuple(models)


def load_trial_from_checkpoint_path(path: str | os.PathLike[str]) -> Any:
    """Make the trial of a checkpoint, with the weights of the checkpoint in its models.

    **This runs code from the checkpoint**: the trial class in its folder ``code/`` is imported, and
    its ``__init__`` called. Load only checkpoints of people you trust, or use
    `load_weights_from_checkpoint_path` with your own model, which runs no such code.

    Args:
        path: The checkpoint's folder, such as ``detcore checkpoint download`` makes.

    Returns:
        The trial. Its optimizers are fresh.

    Raises:
        CheckpointNotFoundError: If there is no such folder.
        InvalidCheckpointError: If it is not a checkpoint of a ``PyTorchTrial``, or does not fit the
            models that its code makes.
    """
    folder = find_checkpoint_directory(path)
    record = read_trial_file(folder, _FRAMEWORK)
    context = PyTorchTrialContext.from_config(record["config"])
    with create_trial_from_code(folder, record["trial_class"], context, instead=_INSTEAD) as trial:
        pass
    load_models(context.models, folder)
    trial.context = context
    return trial


def load_weights_from_checkpoint_path(path: str | os.PathLike[str], model: Any) -> Any:
    """Load the weights of a checkpoint into a model of the caller.

    Runs no code from the checkpoint.

    Args:
        path: The checkpoint's folder.
        model: A model like the trial's; a sequence of models if the trial wrapped several.

    Returns:
        The same model or models.

    Raises:
        CheckpointNotFoundError: If there is no such folder.
        InvalidCheckpointError: If it is not a checkpoint of a ``PyTorchTrial``, or does not fit;
            then the model stays unchanged.
    """
    folder = find_checkpoint_directory(path)
    load_models(model if isinstance(model, list | tuple) else [model], folder)
    return model
