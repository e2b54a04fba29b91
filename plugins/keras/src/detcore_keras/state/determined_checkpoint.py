"""Read checkpoints that Determined 0.12 to 0.17 wrote for a ``TFKerasTrial``, without pickle."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.errors import InvalidCheckpointError
from detcore_keras.state.array_files import read_json
from detcore_keras.state.determined_weights import load_h5_weights, load_object_graph_weights

# 0.13.8 and later: weights in TensorFlow's format. Earlier: the whole model as HDF5.
_WEIGHTS = "determined-keras-model-weights"
_H5_FILES = ("determined-keras-model.h5", "determined-keras-model")
_DESCRIPTIONS = ("load_data.json", "metadata.json")
_TRIAL_TYPE = "TFKerasTrial"
# Modules of Determined, and the detcore modules with the same names.
_ALIASES = {
    "determined": "detcore",
    "determined.core": "detcore.core",
    "determined.experimental": None,
    "determined.keras": "detcore_keras",
    "determined.keras.callbacks": "detcore_keras.callbacks",
}
LOAD_INSTEAD = """\
Build the model yourself, and load the weights into it:
  detcore_keras.load_weights_from_checkpoint_path(path, model)"""


def check_legacy(folder: Path) -> None:
    """Raise an error for a directory that is not a checkpoint of Determined.

    Raises:
        InvalidCheckpointError: If the directory has no weights of a ``TFKerasTrial``.
    """
    has_weights = (folder / f"{_WEIGHTS}.index").exists()
    if not has_weights and not any((folder / name).exists() for name in _H5_FILES):
        raise InvalidCheckpointError(
            f"{folder} is not a checkpoint of a TFKerasTrial: it has no trial.json (detcore), no "
            f"{_WEIGHTS}.index and no {_H5_FILES[0]} (Determined).\n"
            f"It has: {', '.join(sorted(path.name for path in folder.iterdir())) or 'nothing'}."
        )


def read_legacy_trial(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a trial's ``"module:Class"``, and its configuration with plain hyperparameters.

    Raises:
        InvalidCheckpointError: If the checkpoint does not describe a ``TFKerasTrial``.
    """
    for name in _DESCRIPTIONS:
        path = folder / name
        described = read_json(path, "") if path.exists() else {}
        if "experiment_config" in described:
            return _read_description(path, described)
    raise InvalidCheckpointError(
        f"the trial class of the checkpoint {folder} is unknown: it has no load_data.json, and no "
        "metadata.json with an experiment_config.\n"
        "Determined 0.17.6 and earlier wrote these only when a checkpoint was downloaded.\n"
        f"{LOAD_INSTEAD}"
    )


def load_legacy_weights(model: Any, folder: Path) -> None:
    """Load the weights into a built model.

    Raises:
        InvalidCheckpointError: If the weights do not fit. The model then stays unchanged.
    """
    if (folder / f"{_WEIGHTS}.index").exists():
        load_object_graph_weights(model, folder / _WEIGHTS)
        return
    load_h5_weights(model, next(folder / name for name in _H5_FILES if (folder / name).exists()))


def make_aliases() -> dict[str, ModuleType]:
    """Return modules that provide detcore under the names that code for Determined imports.

    ``from determined.keras import TFKerasTrial`` then imports ``detcore_keras.TFKerasTrial``.
    """
    modules = {name: _make_alias(name, ours) for name, ours in _ALIASES.items()}
    for name, module in modules.items():
        parent, _, attribute = name.rpartition(".")
        if parent:
            setattr(modules[parent], attribute, module)
    vars(modules["determined.keras"])["InputData"] = Any  # a name for annotations only
    return modules


def _read_description(path: Path, described: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kind = described.get("trial_type", _TRIAL_TYPE)
    if kind != _TRIAL_TYPE:
        raise InvalidCheckpointError(
            f"the checkpoint is from a {kind}, not from a {_TRIAL_TYPE}, according to {path}"
        )
    config = described["experiment_config"]
    entrypoint = described.get("trial_cls_spec") or config.get("entrypoint")
    if not isinstance(entrypoint, str) or ":" not in entrypoint:
        raise InvalidCheckpointError(
            f"{path} does not name a trial class: its entrypoint is {entrypoint!r}.\n{LOAD_INSTEAD}"
        )
    hparams = described.get("hparams") or config.get("hyperparameters") or {}
    return entrypoint, {**config, "hyperparameters": hparams}


def _make_alias(name: str, ours: str | None) -> ModuleType:
    module = ModuleType(name)
    vars(module)["__path__"] = []

    def find_attribute(attribute: str) -> Any:
        target = None if ours is None else importlib.import_module(ours)
        if target is not None and hasattr(target, attribute):
            return getattr(target, attribute)
        raise AttributeError(
            f"the code in the checkpoint uses {name}.{attribute}, which detcore does not have"
        )

    vars(module)["__getattr__"] = find_attribute
    return module
