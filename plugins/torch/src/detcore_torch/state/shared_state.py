"""The part of a checkpoint that is the same for all workers: models, optimizers, schedulers.

| file | content |
| --- | --- |
| ``model.safetensors``, ``model-1.safetensors``, ... | a model's ``state_dict``, by its names |
| ``optimizer.json``, ``optimizer.safetensors``, ... | an optimizer's state |
| ``torch.safetensors`` | tensors of schedulers and scalers, and buffers that are not persistent |
| ``torch.json`` | everything else, with the names of the tensors in their places |
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
    """The objects of a trial or script whose state is the same for all workers.

    Attributes:
        attributes: Attributes of the models, which are without the wrappers of a process group.
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
        """Return the schedulers' states without functions, which the trial's code makes again."""
        return [
            {name: value for name, value in each.state_dict().items() if not callable(value)}
            for each in self.schedulers
        ]


def capture_shared(objects: SavedObjects, files: StateFiles) -> None:
    """Add the state of all objects; tensors may share its memory.

    Raises:
        InvalidExperimentError: If the state could not be restored.
    """
    attributes = objects.attributes.capture()
    models: list[dict[str, Any]] = []
    for index, model in enumerate(objects.models):
        state = model.state_dict()
        tensors = {name: v for name, v in state.items() if isinstance(v, torch.Tensor)}
        files.add_tensors(f"{_name('model', index)}.safetensors", tensors)
        extra = {name: value for name, value in state.items() if name not in tensors}
        models.append({"extra": extra, "attributes": attributes[index]})
    for index, optimizer in enumerate(objects.optimizers):
        files.add_state(_name("optimizer", index), optimizer.state_dict())
    document = {
        "models": models,
        "optimizers": [
            {"class": type(each).__name__, "parameters": _name_groups(each, objects.models)}
            for each in objects.optimizers
        ],
        "schedulers": objects.capture_schedulers(),
        "scalers": [scaler.state_dict() for scaler in objects.scalers],
    }
    files.add_state(_NAME, document)


def restore_shared(objects: SavedObjects, directory: Path) -> None:
    """Restore all objects from a checkpoint.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    document = read_state(directory, _NAME)
    optimizers = _read_optimizers(objects, directory, document)
    schedulers = _list(document, "schedulers", len(objects.schedulers))
    scalers = _list(document, "scalers", len(objects.scalers))
    load_models(objects.models, directory)
    attributes_in(objects.models, directory)()
    for optimizer, (names, state) in zip(objects.optimizers, optimizers, strict=True):
        _restore_groups(optimizer, names, objects.models)
        _load(optimizer.load_state_dict, state, directory)
    for each, state in zip(objects.schedulers, schedulers, strict=True):
        _load(each.load_state_dict, state, directory)
    for scaler, state in zip(objects.scalers, scalers, strict=True):
        _load(scaler.load_state_dict, state, directory)


def start_from_other(objects: SavedObjects, directory: Path) -> None:
    """Restore models and optimizers' states from another trial; settings stay this trial's.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    optimizers = _read_optimizers(objects, directory, read_state(directory, _NAME))
    load_models(objects.models, directory)
    for optimizer, (names, state) in zip(objects.optimizers, optimizers, strict=True):
        # Learning rates and their like are hyperparameters of this trial.
        own = _select_moments(optimizer, state, names, objects.models)
        _load(optimizer.load_state_dict, own, directory)


def load_models(models: Sequence[Any], directory: Path) -> None:
    """Restore models from a checkpoint; either all are changed, or none.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    records = _list(read_state(directory, _NAME), "models", len(models))
    states = []
    for index, (model, record) in enumerate(zip(models, records, strict=True)):
        file = directory / f"{_name('model', index)}.safetensors"
        state = {**read_tensors(file), **record.get("extra", {})}
        _check_fit(model, state, file)
        states.append(state)
    for model, state in zip(models, states, strict=True):
        _load(model.load_state_dict, state, directory)


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
        InvalidCheckpointError: If they are damaged; the function also if they do not fit.
    """
    records = _list(read_state(directory, _NAME), "models", len(models))

    def restore_all() -> None:
        for model, record in zip(models, records, strict=True):
            _load(functools.partial(restore, model), record.get("attributes"), directory)

    return restore_all


def _check_fit(model: torch.nn.Module, state: Mapping[str, Any], file: Path) -> None:
    own = model.state_dict()
    faults = [f"{name} is not in the file" for name in own if name not in state]
    faults += [f"{name} is not in the model" for name in state if name not in own]
    for name in own:
        here, there = own[name], state.get(name)
        if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
            if here.shape != there.shape:
                shapes = f"{tuple(here.shape)} in the model and {tuple(there.shape)} in the file"
                faults.append(f"{name} has the shape {shapes}")
            elif here.dtype != there.dtype:
                faults.append(f"{name} is {here.dtype} in the model, {there.dtype} in the file")
    if faults:
        more = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise InvalidCheckpointError(
            f"{file} does not fit the {type(model).__name__}: {'; '.join(faults[:5])}{more}.\n"
            "The model was changed since the checkpoint was made, or the checkpoint is of another "
            "one.\nUse the code of the checkpoint (its folder code), or start a new trial."
        )


def _read_optimizers(
    objects: SavedObjects, directory: Path, document: Mapping[str, Any]
) -> list[Any]:
    found = []
    records = _list(document, "optimizers", len(objects.optimizers))
    for index, (optimizer, record) in enumerate(zip(objects.optimizers, records, strict=True)):
        if record.get("class") != type(optimizer).__name__:
            raise InvalidCheckpointError(
                f"optimizer {index} is a {type(optimizer).__name__}, and in the checkpoint "
                f"{directory} a {record.get('class')}.\n"
                "Use the optimizer that the checkpoint was made with, or start a new trial."
            )
        found.append((record.get("parameters"), read_state(directory, _name("optimizer", index))))
    return found


def _list(document: Mapping[str, Any], key: str, count: int) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidCheckpointError(
            f"{_NAME}.json of the checkpoint is damaged: {key} is {found!r}"
        )
    if len(found) != count:
        raise InvalidCheckpointError(
            f"the trial wraps {count} {key}, and the checkpoint holds {len(found)}.\n"
            "Use the code that the checkpoint was made with, or start a new trial."
        )
    return found


def _load(load: Callable[[Any], Any], state: Any, directory: Path) -> None:
    try:
        load(state)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidCheckpointError(
            f"the checkpoint {directory} does not fit: {error}.\n"
            "Use the code that the checkpoint was made with, or start a new trial."
        ) from error


def _name_groups(optimizer: Any, models: Sequence[Any]) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer.

    Raises:
        InvalidExperimentError: If a parameter belongs to none of the models.
    """
    names = {id(each): name for name, each in _name_parameters(models).items()}
    groups: list[list[str]] = []
    for index, group in enumerate(optimizer.param_groups):
        unknown = [each for each in group["params"] if id(each) not in names]
        if unknown:
            shapes = ", ".join(str(tuple(each.shape)) for each in unknown[:3])
            raise InvalidExperimentError(
                f"{len(unknown)} parameters in group {index} of {type(optimizer).__name__} belong "
                f"to no model that is saved (shape: {shapes}).\n"
                "Checkpoints would not contain them, so training could not be resumed.\n"
                "Make them parameters of the model: assign the module that they belong to, or an "
                "nn.Parameter, to an attribute of the model in its __init__."
            )
        groups.append([names[id(each)] for each in group["params"]])
    return groups


def _restore_groups(optimizer: Any, groups: list[list[str]], models: Sequence[Any]) -> None:
    """Give an optimizer the groups of parameters that `_name_groups` returned.

    Raises:
        InvalidCheckpointError: If a model has no such parameter.
    """
    parameters = _name_parameters(models)
    missing = [name for names in groups for name in names if name not in parameters]
    if missing:
        raise InvalidCheckpointError(
            f"{type(optimizer).__name__} of the checkpoint trains {', '.join(missing[:3])}, which "
            "the model does not have.\n"
            "Use the code that the checkpoint was made with, or start a new trial."
        )
    del optimizer.param_groups[len(groups) :]
    for group, names in zip(optimizer.param_groups, groups, strict=False):
        group["params"] = [parameters[name] for name in names]
    for names in groups[len(optimizer.param_groups) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in names]})


def _select_moments(
    optimizer: Any, state: Mapping[str, Any], groups: list[list[str]], models: Sequence[Any]
) -> dict[str, Any]:
    """Return the part of an optimizer's state that belongs to the parameters of another one.

    Args:
        optimizer: The other one, whose settings the result has.
        state: The state, from ``state_dict``.
        groups: The names of the parameters of the state, from `_name_groups`.
        models: The models whose parameters the other one trains.
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


def _name(kind: str, index: int) -> str:
    return f"{kind}-{index}" if index else kind
