"""The part of a checkpoint that is the same for all workers: models, optimizers, schedulers.

| file | content |
| --- | --- |
| ``model.safetensors``, ``model-1.safetensors``, ... | a model's ``state_dict``, by its names |
| ``optimizer.safetensors``, ... | the tensors of an optimizer's state |
| ``others.safetensors`` | tensors of schedulers and scalers, and buffers that are not persistent |
| ``torch.json`` | everything else, with the names of the tensors in their places |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detcore.errors import InvalidCheckpointError
from detcore_torch._files import StateFiles, read_json, read_tensors
from detcore_torch._model_attributes import (
    ModelAttributes,
    restore_attributes,
    restore_buffers,
)
from detcore_torch._parameter_groups import name_groups, restore_groups, select_moments
from detcore_torch._torch import torch
from detcore_torch._tree import decode, encode

if TYPE_CHECKING:
    from detcore_torch._schedulers import LRScheduler


_FILE = "torch.json"
_OTHERS = "others.safetensors"
_VERSION = 1


class Wrapped(Protocol):
    """The objects whose state is saved, such as those that a trial wrapped with its context."""

    @property
    def models(self) -> Sequence[torch.nn.Module]:
        """Models."""

    @property
    def attributes(self) -> ModelAttributes:
        """Attributes of the models."""

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Optimizers."""

    @property
    def lr_schedulers(self) -> Sequence[LRScheduler]:
        """Learning rate schedulers."""

    @property
    def scalers(self) -> Sequence[torch.amp.GradScaler]:
        """Gradient scalers."""


def capture_shared(context: Wrapped, files: StateFiles) -> None:
    """Add the state of every object that the trial wrapped; tensors may share its memory.

    Raises:
        InvalidExperimentError: If the state could not be restored.
    """
    others: dict[str, Any] = {}
    document: dict[str, Any] = {"version": _VERSION, "models": [], "optimizers": []}
    attributes = context.attributes.capture()
    for index, model in enumerate(context.models):
        state = model.state_dict()
        tensors = {name: v for name, v in state.items() if isinstance(v, torch.Tensor)}
        files.add_tensors(_name("model", index), tensors)
        extra = {name: value for name, value in state.items() if name not in tensors}
        document["models"].append({
            "extra": encode(extra, others, f"model.{index}"),
            "attributes": encode(attributes[index], others, f"model.{index}.attributes"),
        })  # fmt: skip
    for index, optimizer in enumerate(context.optimizers):
        tensors = {}
        encoded = encode(optimizer.state_dict(), tensors, "optimizer")
        files.add_tensors(_name("optimizer", index), tensors)
        document["optimizers"].append({
            "class": type(optimizer).__name__,
            "parameters": name_groups(optimizer, context.models),
            "state": encoded,
        })  # fmt: skip
    document["schedulers"] = [
        encode(_plain_part(each.scheduler.state_dict()), others, f"scheduler.{index}")
        for index, each in enumerate(context.lr_schedulers)
    ]
    document["scalers"] = [
        encode(scaler.state_dict(), others, f"scaler.{index}")
        for index, scaler in enumerate(context.scalers)
    ]
    if others:
        files.add_tensors(_OTHERS, others)
    files.documents[_FILE] = document


def restore_shared(context: Wrapped, directory: Path) -> None:
    """Restore every object that the trial wrapped from a checkpoint.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    document = read_json(directory / _FILE, _VERSION)
    others = _read_others(directory)
    optimizers = _read_optimizers(context, directory, document)
    schedulers = _states(document, "schedulers", len(context.lr_schedulers), others)
    scalers = _states(document, "scalers", len(context.scalers), others)
    load_models(context.models, directory)
    attributes_in(context.models, directory)()
    for optimizer, (names, state) in zip(context.optimizers, optimizers, strict=True):
        restore_groups(optimizer, names, context.models)
        _load(optimizer.load_state_dict, state, directory)
    for each, state in zip(context.lr_schedulers, schedulers, strict=True):
        _load(each.scheduler.load_state_dict, state, directory)
    for scaler, state in zip(context.scalers, scalers, strict=True):
        _load(scaler.load_state_dict, state, directory)


def start_from_other(context: Wrapped, directory: Path) -> None:
    """Restore models and optimizers' states from another trial; settings stay this trial's.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    document = read_json(directory / _FILE, _VERSION)
    optimizers = _read_optimizers(context, directory, document)
    load_models(context.models, directory)
    for optimizer, (names, state) in zip(context.optimizers, optimizers, strict=True):
        # Learning rates and their like are hyperparameters of this trial.
        own = select_moments(optimizer, state, names, context.models)
        _load(optimizer.load_state_dict, own, directory)


def load_models(models: Sequence[Any], directory: Path) -> None:
    """Restore models from a checkpoint; either all are changed, or none.

    Raises:
        InvalidCheckpointError: If it does not fit, or is damaged.
    """
    document = read_json(directory / _FILE, _VERSION)
    others = _read_others(directory)
    records = _list(document, "models", len(models))
    states = []
    for index, (model, record) in enumerate(zip(models, records, strict=True)):
        file = directory / _name("model", index)
        state = read_tensors(file)
        state.update(decode(record.get("extra", {}), others))
        _check_fit(model, state, file)
        states.append(state)
    for model, state in zip(models, states, strict=True):
        _load(model.load_state_dict, state, directory)


def load_buffers(models: Sequence[Any], directory: Path) -> None:
    """Restore the buffers of models that are not part of their ``state_dict``.

    Raises:
        InvalidCheckpointError: If they do not fit, or are damaged.
    """
    for model, state in zip(models, _read_attributes(models, directory), strict=True):
        _load(functools.partial(restore_buffers, model), state, directory)


def attributes_in(models: Sequence[Any], directory: Path) -> Callable[[], None]:
    """Read the attributes of models; return a function that restores them.

    Raises:
        InvalidCheckpointError: If they are damaged; the function also if they do not fit.
    """
    states = _read_attributes(models, directory)

    def restore() -> None:
        for model, state in zip(models, states, strict=True):
            _load(functools.partial(restore_attributes, model), state, directory)

    return restore


def _read_attributes(models: Sequence[Any], directory: Path) -> list[Any]:
    records = _list(read_json(directory / _FILE, _VERSION), "models", len(models))
    others = _read_others(directory)
    return [decode(record.get("attributes"), others) for record in records]


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


def _read_optimizers(context: Wrapped, directory: Path, document: Mapping[str, Any]) -> list[Any]:
    found = []
    records = _list(document, "optimizers", len(context.optimizers))
    for index, (optimizer, record) in enumerate(zip(context.optimizers, records, strict=True)):
        if record.get("class") != type(optimizer).__name__:
            raise InvalidCheckpointError(
                f"optimizer {index} is a {type(optimizer).__name__}, and in the checkpoint "
                f"{directory} a {record.get('class')}.\n"
                "Use the optimizer that the checkpoint was made with, or start a new trial."
            )
        tensors = read_tensors(directory / _name("optimizer", index))
        found.append((record.get("parameters"), decode(record.get("state"), tensors)))
    return found


def _read_others(directory: Path) -> dict[str, Any]:
    path = directory / _OTHERS
    return read_tensors(path) if path.exists() else {}


def _states(
    document: Mapping[str, Any], key: str, count: int, tensors: Mapping[str, Any]
) -> list[Any]:
    return [decode(state, tensors) for state in _list(document, key, count)]


def _list(document: Mapping[str, Any], key: str, count: int) -> list[Any]:
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidCheckpointError(f"{_FILE} of the checkpoint is damaged: {key} is {found!r}")
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


def _plain_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's state without functions, which the trial's code makes again."""
    return {name: value for name, value in state.items() if not callable(value)}


def _name(kind: str, index: int) -> str:
    return f"{kind}-{index}.safetensors" if index else f"{kind}.safetensors"
