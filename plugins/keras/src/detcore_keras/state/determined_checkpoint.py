"""Read checkpoints that Determined 0.12 to 0.17 wrote for a ``TFKerasTrial``, without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.errors import InvalidCheckpointError
from detcore_keras.state.determined_weights import load_h5_weights, load_object_graph_weights

# 0.13.8 and later: weights in TensorFlow's format. Earlier: the whole model as HDF5.
_WEIGHTS = "determined-keras-model-weights"
_H5_FILES = ("determined-keras-model.h5", "determined-keras-model")
_DESCRIPTIONS = ("load_data.json", "metadata.json")
_TRIAL_TYPE = "TFKerasTrial"
LOAD_INSTEAD = """\
Build the model yourself, and load the weights into it:
  detcore_keras.load_weights_from_checkpoint_path(path, model)"""


def check_legacy(folder: Path) -> None:
    """Raise an error for a folder that is not a checkpoint of Determined.

    Raises:
        InvalidCheckpointError: If it has no weights of a ``TFKerasTrial``.
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
        described = _read(folder / name)
        if "experiment_config" in described:
            return _read_description(folder / name, described)
    raise InvalidCheckpointError(
        f"{folder} does not say which trial class wrote it: it has no load_data.json, and no "
        "metadata.json with an experiment_config.\n"
        "Determined 0.17.6 and earlier wrote that only when a checkpoint was downloaded.\n"
        f"{LOAD_INSTEAD}"
    )


def load_legacy_weights(model: Any, folder: Path) -> None:
    """Load the weights into a built model.

    Raises:
        InvalidCheckpointError: If they do not fit; the model stays unchanged.
    """
    if (folder / f"{_WEIGHTS}.index").exists():
        load_object_graph_weights(model, folder / _WEIGHTS)
        return
    load_h5_weights(model, next(folder / name for name in _H5_FILES if (folder / name).exists()))


def names_of_the_earlier_system() -> dict[str, ModuleType]:
    """Return modules that provide ours under the names that code for Determined imports.

    ``from determined.keras import TFKerasTrial`` in such code gives ``detcore_keras.TFKerasTrial``.
    """
    import detcore
    import detcore_keras
    from detcore import core
    from detcore_keras import callbacks

    # InputData: a name for annotations only.
    keras = _alias("determined.keras", detcore_keras, {"InputData": Any, "callbacks": callbacks})
    experimental = _alias("determined.experimental", None, {})
    root = _alias(
        "determined", detcore, {"keras": keras, "core": core, "experimental": experimental}
    )
    return {
        "determined": root,
        "determined.core": core,
        "determined.experimental": experimental,
        "determined.keras": keras,
        "determined.keras.callbacks": callbacks,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    return value if isinstance(value, dict) else {}


def _read_description(path: Path, described: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    kind = described.get("trial_type", _TRIAL_TYPE)
    if kind != _TRIAL_TYPE:
        raise InvalidCheckpointError(
            f"{path} says that the checkpoint is of a {kind}, not of a {_TRIAL_TYPE}"
        )
    config = described["experiment_config"]
    entrypoint = described.get("trial_cls_spec") or config.get("entrypoint")
    if not isinstance(entrypoint, str) or ":" not in entrypoint:
        raise InvalidCheckpointError(
            f"{path} names no trial class: its entrypoint is {entrypoint!r}.\n{LOAD_INSTEAD}"
        )
    hparams = described.get("hparams") or config.get("hyperparameters") or {}
    return entrypoint, {**config, "hyperparameters": hparams}


def _alias(name: str, target: ModuleType | None, extra: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(extra, __path__=[])

    def find(attribute: str) -> Any:
        if target is not None and hasattr(target, attribute):
            return getattr(target, attribute)
        raise AttributeError(
            f"the code in the checkpoint uses {name}.{attribute}, for which detcore has nothing"
        )

    getter: Callable[[str], Any] = find
    vars(module)["__getattr__"] = getter
    return module
