"""The part of a checkpoint that all workers share: models, optimizers, schedulers.

| file | content |
| --- | --- |
| ``model.safetensors``, ``model-1.safetensors``, ... | a model's ``state_dict``, by its names |
| ``optimizer.json``, ``optimizer.safetensors``, ... | an optimizer's state |
| ``torch.safetensors`` | tensors of schedulers and scalers, and buffers that are not persistent |
| ``torch.json`` | all other values, with names in place of tensors |
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore_torch.libraries import torch
from detcore_torch.state.model_attributes import (
    ModelAttributes,
    restore_attributes,
)
from detcore_torch.state.state_files import StateFiles, read_state, read_tensors

_NAME = "torch"


@dataclasses.dataclass(slots=True, kw_only=True)
class SavedObjects:
    """The objects of a trial or script whose state all workers share.

    Attributes:
        attributes: Attributes of the models. The models are not in process group wrappers.
        optimizers: Their optimizers.
        schedulers: Learning rate schedulers.
        scalers: Gradient scalers.
    """

    attributes: ModelAttributes
    optimizers: Sequence[torch.optim.Optimizer] = ()
    schedulers: Sequence[Any] = ()
    scalers: Sequence[Any] = ()

    @property
    def models(self) -> Sequence[torch.nn.Module]:
        """The models."""
        return self.attributes.models

    def capture_schedulers(self) -> list[dict[str, Any]]:
        """Return the schedulers' states without functions, which the trial's code creates again."""
        return [
            {name: value for name, value in scheduler.state_dict().items() if not callable(value)}
            for scheduler in self.schedulers
        ]


def capture_shared(objects: SavedObjects, files: StateFiles) -> None:
    """Add the state of all objects. Added tensors may share memory with the objects.

    Raises:
        InvalidExperimentError: If a checkpoint of the state could not be restored.
    """
    attributes = objects.attributes.capture()
    models: list[dict[str, Any]] = []
    for index, model in enumerate(objects.models):
        state = model.state_dict()
        tensors = {name: v for name, v in state.items() if isinstance(v, torch.Tensor)}
        files.add_tensors(f"{_name_file('model', index)}.safetensors", tensors)
        extra = {name: value for name, value in state.items() if name not in tensors}
        models.append({"extra": extra, "attributes": attributes[index]})
    for index, optimizer in enumerate(objects.optimizers):
        files.add_state(_name_file("optimizer", index), optimizer.state_dict())
    document = {
        "models": models,
        "optimizers": [
            {
                "class": type(optimizer).__name__,
                "parameters": _name_groups(optimizer, objects.models),
            }
            for optimizer in objects.optimizers
        ],
        "schedulers": objects.capture_schedulers(),
        "scalers": [scaler.state_dict() for scaler in objects.scalers],
    }
    files.add_state(_NAME, document)


def restore_shared(objects: SavedObjects, directory: Path) -> None:
    """Restore all objects from a checkpoint.

    Raises:
        InvalidCheckpointError: If the checkpoint does not fit, or is damaged.
    """
    document = read_state(directory, _NAME)
    optimizers = _read_optimizers(objects, directory, document)
    schedulers = _read_entries(document, "schedulers", len(objects.schedulers))
    scalers = _read_entries(document, "scalers", len(objects.scalers))
    load_models(objects.models, directory)
    attributes_in(objects.models, directory)()
    for optimizer, (names, state) in zip(objects.optimizers, optimizers, strict=True):
        _restore_groups(optimizer, names, objects.models)
        _load_state(optimizer.load_state_dict, state, directory)
    for scheduler, state in zip(objects.schedulers, schedulers, strict=True):
        _load_state(scheduler.load_state_dict, state, directory)
    for scaler, state in zip(objects.scalers, scalers, strict=True):
        _load_state(scaler.load_state_dict, state, directory)


def start_from_other(objects: SavedObjects, directory: Path) -> None:
    """Restore models and optimizer states from another trial, but keep this trial's settings.

    Raises:
        InvalidCheckpointError: If the checkpoint does not fit, or is damaged.
    """
    optimizers = _read_optimizers(objects, directory, read_state(directory, _NAME))
    load_models(objects.models, directory)
    for optimizer, (names, state) in zip(objects.optimizers, optimizers, strict=True):
        # Learning rates and similar settings are hyperparameters of this trial.
        moments = _select_moments(optimizer, state, names, objects.models)
        _load_state(optimizer.load_state_dict, moments, directory)


def load_models(models: Sequence[Any], directory: Path) -> None:
    """Restore models from a checkpoint; either all models change, or none.

    Raises:
        InvalidCheckpointError: If the checkpoint does not fit, or is damaged.
    """
    records = _read_entries(read_state(directory, _NAME), "models", len(models))
    states = []
    for index, (model, record) in enumerate(zip(models, records, strict=True)):
        file = directory / f"{_name_file('model', index)}.safetensors"
        state = {**read_tensors(file), **record.get("extra", {})}
        _check_fit(model, state, file)
        states.append(state)
    for model, state in zip(models, states, strict=True):
        _load_state(model.load_state_dict, state, directory)


def attributes_in(
    models: Sequence[Any],
    directory: Path,
    restore: Callable[[Any, Mapping[str, Any]], None] = restore_attributes,
) -> Callable[[], None]:
    """Read the attributes of models; return a function that restores them.

    Args:
        models: The models.
        directory: The checkpoint.
        restore: Restores the attributes of a model, or a part of them.

    Raises:
        InvalidCheckpointError: If they are damaged. The function raises it if they do not fit.
    """
    records = _read_entries(read_state(directory, _NAME), "models", len(models))

    def restore_all() -> None:
        for model, record in zip(models, records, strict=True):
            _load_state(functools.partial(restore, model), record.get("attributes"), directory)

    return restore_all


def _check_fit(model: torch.nn.Module, state: Mapping[str, Any], file: Path) -> None:
    model_state = model.state_dict()
    faults = [f"{name} is not in the file" for name in model_state if name not in state]
    faults += [f"{name} is not in the model" for name in state if name not in model_state]
    for name in model_state:
        current, stored = model_state[name], state.get(name)
        if isinstance(current, torch.Tensor) and isinstance(stored, torch.Tensor):
            if current.shape != stored.shape:
                shapes = (
                    f"{tuple(current.shape)} in the model and {tuple(stored.shape)} in the file"
                )
                faults.append(f"{name} has the shape {shapes}")
            elif current.dtype != stored.dtype:
                faults.append(f"{name} is {current.dtype} in the model, {stored.dtype} in the file")
    if faults:
        more = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise InvalidCheckpointError(
            f"{file} does not fit the {type(model).__name__}: {'; '.join(faults[:5])}{more}.\n"
            "The model's code has changed since, or the checkpoint belongs to another model.\n"
            "Use the code of the checkpoint (its directory code/), or start a new trial."
        )


def _read_optimizers(
    objects: SavedObjects, directory: Path, document: Mapping[str, Any]
) -> list[Any]:
    optimizers = []
    records = _read_entries(document, "optimizers", len(objects.optimizers))
    for index, (optimizer, record) in enumerate(zip(objects.optimizers, records, strict=True)):
        if record.get("class") != type(optimizer).__name__:
            raise InvalidCheckpointError(
                f"optimizer {index} is a {type(optimizer).__name__}, and in the checkpoint "
                f"{directory} a {record.get('class')}.\n"
                "Use the optimizer of the checkpoint, or start a new trial."
            )
        optimizers.append(
            (record.get("parameters"), read_state(directory, _name_file("optimizer", index)))
        )
    return optimizers


def _read_entries(document: Mapping[str, Any], key: str, count: int) -> list[Any]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidCheckpointError(
            f"{_NAME}.json of the checkpoint is damaged: {key} is {entries!r}"
        )
    if len(entries) != count:
        raise InvalidCheckpointError(
            f"the trial wraps {count} {key}, and the checkpoint has {len(entries)}.\n"
            "Use the code of the checkpoint, or start a new trial."
        )
    return entries


def _load_state(load: Callable[[Any], Any], state: Any, directory: Path) -> None:
    try:
        load(state)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidCheckpointError(
            f"the checkpoint {directory} does not fit: {error}.\n"
            "Use the code of the checkpoint, or start a new trial."
        ) from error


def _name_groups(optimizer: Any, models: Sequence[Any]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer.

    Raises:
        InvalidExperimentError: If a parameter does not belong to any model.
    """
    names = {id(parameter): name for name, parameter in _name_parameters(models).items()}
    groups: list[list[str]] = []
    for index, group in enumerate(optimizer.param_groups):
        unknown = [parameter for parameter in group["params"] if id(parameter) not in names]
        if unknown:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in unknown[:3])
            raise InvalidExperimentError(
                f"{len(unknown)} parameters in group {index} of {type(optimizer).__name__} do not "
                f"belong to a saved model (shape: {shapes}).\n"
                "Checkpoints would not contain them, so training could not be resumed.\n"
                "Make them parameters of the model: in its __init__, assign their module, or an "
                "nn.Parameter, to an attribute."
            )
        groups.append([names[id(parameter)] for parameter in group["params"]])
    return groups


def _restore_groups(optimizer: Any, groups: list[list[str]], models: Sequence[Any]) -> None:
    """Restore an optimizer's parameter groups from a result of `_name_groups`.

    Raises:
        InvalidCheckpointError: If the models lack a parameter.
    """
    parameters = _name_parameters(models)
    missing = [name for names in groups for name in names if name not in parameters]
    if missing:
        raise InvalidCheckpointError(
            f"{type(optimizer).__name__} of the checkpoint trains {', '.join(missing[:3])}, which "
            "the model does not have.\n"
            "Use the code of the checkpoint, or start a new trial."
        )
    del optimizer.param_groups[len(groups) :]
    for group, names in zip(optimizer.param_groups, groups, strict=False):
        group["params"] = [parameters[name] for name in names]
    for names in groups[len(optimizer.param_groups) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in names]})


def _select_moments(
    optimizer: Any, state: Mapping[str, Any], groups: list[list[str]], models: Sequence[Any]
) -> dict[str, Any]:
    """Return the part of a state that belongs to the parameters of an optimizer.

    Args:
        optimizer: The optimizer, whose settings the result has.
        state: The state, from ``state_dict``.
        groups: The names of the parameters of the state, from `_name_groups`.
        models: The models whose parameters the optimizer trains.
    """
    numbers = {name: i for i, name in enumerate(n for names in groups for n in names)}
    own_names = [name for names in _name_groups(optimizer, models) for name in names]
    moments = {
        index: state["state"][numbers[name]]
        for index, name in enumerate(own_names)
        if numbers.get(name) in state["state"]
    }
    return {**state, "state": moments, "param_groups": optimizer.state_dict()["param_groups"]}


def _name_parameters(models: Sequence[Any]) -> dict[str, Any]:
    return {
        f"model-{index}.{name}": parameter
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }


def _name_file(kind: str, index: int) -> str:
    return f"{kind}-{index}" if index else kind
