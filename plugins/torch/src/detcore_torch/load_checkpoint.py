"""Load a model from a checkpoint, such as for prediction."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.trial import create_trial_from_code, find_checkpoint_directory, read_trial_file
from detcore_torch.pytorch_context import PyTorchTrialContext
from detcore_torch.state.shared_state import load_models

if TYPE_CHECKING:
    from detcore_torch.pytorch_trial import PyTorchTrial

_FRAMEWORK = "torch"
_INSTEAD = """\
Create the model yourself, and load the weights into it:
  detcore_torch.load_weights_from_checkpoint_path(path, model)"""


def load_model_from_checkpoint_path(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None, map_location: Any = None
) -> Any:
    """Build a trial's model and load the weights of a checkpoint into it.

    **This runs code from the checkpoint**: see `load_trial_from_checkpoint_path`.

    Args:
        path: Directory of the checkpoint.
        tags: Not used; accepted for compatibility.
        map_location: Device of the model, such as ``"cpu"``; None for this process's GPU, or the
            CPU without a GPU.

    Returns:
        The model that the trial wrapped, in evaluation mode; a tuple if it wrapped several.
    """
    models = load_trial_from_checkpoint_path(path).context.models
    for model in models:
        model.eval()
        if map_location is not None:
            model.to(map_location)
    return models[0] if len(models) == 1 else tuple(models)


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: Mapping[str, Any] | None = None,
    torch_load_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Create the trial of a checkpoint, and load the checkpoint's weights into its models.

    **This runs code from the checkpoint** unless `trial_class` is given: it imports the trial class
    in the directory ``code/`` and calls ``__init__``. Load only checkpoints from people you trust,
    or use `load_weights_from_checkpoint_path` with your own model, which does not run such code.

    Args:
        path: Directory of the checkpoint, such as ``detcore checkpoint download`` creates.
        trial_class: The trial's class; None for the class in the checkpoint.
        trial_kwargs: Arguments of the class after the context.
        torch_load_kwargs: Ignored; accepted for compatibility.
        kwargs: Ignored; accepted for compatibility.

    Returns:
        The trial. Its optimizers are in their initial state.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If it is not a checkpoint of a ``PyTorchTrial``, or does not fit the
            models that its code creates.
    """
    folder = find_checkpoint_directory(path)
    record = read_trial_file(folder, _FRAMEWORK)
    context = PyTorchTrialContext.from_config(record["config"])
    arguments = trial_kwargs or {}
    if trial_class is not None:
        trial = trial_class(context, **arguments)
    else:
        with create_trial_from_code(
            folder, record["trial_class"], context, instead=_INSTEAD, arguments=arguments
        ) as trial:
            pass
    load_models(context.models, folder)
    trial.context = context
    return trial


def load_weights_from_checkpoint_path(path: str | os.PathLike[str], model: Any) -> Any:
    """Load the weights of a checkpoint into the caller's model.

    This does not run code from the checkpoint.

    Args:
        path: Directory of the checkpoint.
        model: A model like the trial's; a sequence of models if the trial wrapped several.

    Returns:
        The same model or models.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
        InvalidCheckpointError: If it is not a checkpoint of a ``PyTorchTrial``, or does not fit the
            model, which is then unchanged.
    """
    folder = find_checkpoint_directory(path)
    load_models(model if isinstance(model, list | tuple) else [model], folder)
    return model
