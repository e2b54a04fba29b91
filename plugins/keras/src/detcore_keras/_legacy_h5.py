"""Load weights in Keras's older HDF5 layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError, PluginNotFoundError
from detcore_keras._variables import raw_variable, same_name

__all__ = ["load_h5_weights"]


def load_h5_weights(model: Any, path: Path) -> None:
    """Load the weights of a model that Keras saved as HDF5; its configuration is not read.

    Args:
        model: A built model.
        path: The file: a whole model, or its weights.

    Raises:
        InvalidCheckpointError: If they do not fit; the model stays unchanged.
        PluginNotFoundError: If h5py is not installed.
    """
    saved = _read(path)
    here = [
        (variable.name, variable)
        for layer in model.layers
        # The order in which Keras writes them.
        for variable in [*layer.trainable_weights, *layer.non_trainable_weights]
    ]
    problems = []
    if len(saved) != len(here):
        problems.append(
            f"{len(saved)} weight(s) saved ({', '.join(name for name, _ in saved)}), "
            f"{len(here)} in the model ({', '.join(name for name, _ in here)})"
        )
    for (saved_name, value), (name, variable) in zip(saved, here, strict=False):
        if not same_name(saved_name.rpartition("/")[2], name.rpartition("/")[2]):
            problems.append(f"saved {saved_name!r}, in the model {name!r} in its place")
        elif tuple(variable.shape) != value.shape:
            problems.append(
                f"{saved_name}: saved with shape {value.shape}, in the model "
                f"{tuple(variable.shape)}"
            )
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InvalidCheckpointError(f"{path} does not fit this model:\n{listed}")
    for (_, value), (_, variable) in zip(saved, here, strict=True):
        raw_variable(variable).assign(value)


def _read(path: Path) -> list[tuple[str, npt.NDArray[Any]]]:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            f"reading {path.name} needs h5py, which is not installed.\n"
            '  pip install "detcore-keras[legacy]"'
        ) from error
    try:
        with h5py.File(path, "r") as file:
            group = file.get("model_weights", file)
            return [
                (name, np.asarray(group[layer][name]))
                for layer in _texts(group, "layer_names")
                for name in _texts(group[layer], "weight_names")
            ]
    except (OSError, KeyError) as error:
        raise InvalidCheckpointError(f"{path} cannot be read as Keras HDF5: {error}") from error


def _texts(group: Any, name: str) -> list[str]:
    """Return an attribute that is a list of names; long ones are split into numbered parts."""
    parts = [name] if name in group.attrs else []
    while not parts or f"{name}{len(parts)}" in group.attrs:
        numbered = f"{name}{len(parts)}"
        if numbered not in group.attrs:
            break
        parts.append(numbered)
    if not parts:
        raise KeyError(f"no attribute {name!r}")
    return [
        text.decode() if isinstance(text, bytes) else str(text)
        for part in parts
        for text in group.attrs[part]
    ]
