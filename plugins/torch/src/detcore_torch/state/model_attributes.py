"""The state of a model that training changes and ``state_dict`` omits.

This state consists of ``requires_grad`` of parameters, ``training`` of modules, buffers that are
not persistent, and module attributes that are numbers, strings, or lists and dictionaries of them,
such as ``Dropout.p``. Torchmetrics metrics have a different state on each worker.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detcore_torch.libraries import torch

_MAX_ITEMS = 10_000
_logger = logging.getLogger("detcore.torch")


class ModelAttributes:
    """Captures the attributes of models.

    Create it before training starts. Plain values that do not change afterwards are settings, and
    are not saved.

    Attributes:
        models: The models.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = models
        self._settings = [_read_settings(model) for model in models]
        self._warned: set[str] = set()
        self._warn_of_unsaved()

    def capture(self) -> list[dict[str, Any]]:
        """Return the attributes of each model, with the model's own tensors."""
        self._warn_of_unsaved()
        return [
            {
                "frozen": [
                    name
                    for name, parameter in model.named_parameters()
                    if not parameter.requires_grad
                ],
                "evaluating": [
                    name for name, module in model.named_modules() if not module.training
                ],
                "buffers": read_buffers(model),
                "changed": self.list_changes(index),
            }
            for index, model in enumerate(self.models)
        ]

    def list_changes(self, index: int) -> dict[str, dict[str, Any]]:
        """Return the plain attributes of a model's modules that have changed, by module."""
        return _list_changes(self._settings[index], _read_settings(self.models[index]))

    def _warn_of_unsaved(self) -> None:
        """Warn about buffers that checkpoints cannot contain, once for each."""
        for model in self.models:
            for name, buffer in _find_buffers(model):
                if not _can_save(buffer) and name not in self._warned:
                    self._warned.add(name)
                    _logger.warning(
                        "checkpoints do not contain the buffer %s of %s: it is not persistent, and "
                        "%s. After a resume it has the script's initial value. If training "
                        "changes the buffer, register it with persistent=True",
                        name, type(model).__name__, buffer.layout,
                    )  # fmt: skip


def capture_metrics(models: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the states of this worker's torchmetrics metrics, which ``state_dict`` omits."""
    return {
        name: _move_tensors(dict(metric.metric_state), "cpu")
        for name, metric in _find_metrics(models)
    }


def restore_metrics(models: Sequence[Any], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore a result of `capture_metrics`."""
    for name, metric in _find_metrics(models):
        for attribute, value in states.get(name, {}).items():
            setattr(metric, attribute, _move_tensors(value, metric.device))


def _find_metrics(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        for name, module in model.named_modules():
            if hasattr(module, "metric_state") and hasattr(module, "add_state"):
                yield f"{index}.{name}", module


def _move_tensors(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {name: _move_tensors(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_move_tensors(item, device) for item in value]
    return value.detach().to(device) if isinstance(value, torch.Tensor) else value


def restore_attributes(model: Any, state: Mapping[str, Any]) -> None:
    """Restore a model's attributes from `ModelAttributes.capture`."""
    frozen, evaluating = set(state["frozen"]), set(state["evaluating"])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad is (name in frozen):
            parameter.requires_grad = name not in frozen
    for name, module in model.named_modules():
        module.training = name not in evaluating
        for attribute, value in state["changed"].get(name, {}).items():
            setattr(module, attribute, value)
    restore_buffers(model, state)


def read_buffers(model: Any) -> dict[str, Any]:
    """Return the buffers that are not persistent and that a checkpoint can contain."""
    return {name: buffer for name, buffer in _find_buffers(model) if _can_save(buffer)}


def restore_buffers(model: Any, state: Mapping[str, Any]) -> None:
    """Restore buffers that are not persistent, in place if their shape has not changed.

    Args:
        model: The model.
        state: A result of `read_buffers`, as ``"buffers"``.
    """
    for name, content in state["buffers"].items():
        prefix, _, leaf = name.rpartition(".")
        module = model.get_submodule(prefix)
        current = module._buffers.get(leaf)
        buffer = content
        if isinstance(content, torch.Tensor):
            if isinstance(current, torch.Tensor) and _are_alike(current, content):
                with torch.no_grad():
                    current.copy_(content)
                continue
            buffer = content.to(next(model.parameters(), content).device)
        module._buffers.pop(leaf, None)
        module.register_buffer(leaf, buffer, persistent=False)


def _are_alike(first: Any, second: Any) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)


def _find_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each buffer that is not persistent."""
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set & module._buffers.keys()):
            yield f"{prefix}.{name}".removeprefix("."), module._buffers[name]


def _can_save(buffer: Any) -> bool:
    return buffer is None or (buffer.layout is torch.strided and not buffer.is_meta)


def _read_settings(model: Any) -> dict[str, dict[str, Any]]:
    """Return copies of the plain attributes of each module."""
    return {
        prefix: {
            name: copy.deepcopy(value)
            for name, value in vars(module).items()
            if name not in ignored and _is_plain(value)
        }
        for prefix, module in model.named_modules()
        for ignored in [{"training", *_list_library_names(module)}]
    }


def _list_library_names(module: Any) -> list[str]:
    """Return the names of a ``LightningModule``'s attributes that belong to Lightning itself."""
    return [
        name
        for kind in type(module).__mro__
        if kind.__name__ == "LightningModule" and "lightning" in kind.__module__
        for name in vars(kind())
    ]


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a string, or a small container of them, but not data."""
    if type(value) in (list, tuple):
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, value))
    if type(value) is dict:
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, [*value, *value.values()]))
    return type(value) in (bool, int, float, str, type(None))


def _list_changes(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the new or changed values of each module."""
    missing = object()
    changes = {}
    for prefix, values in now.items():
        old = before.get(prefix, {})
        different = {
            name: value
            for name, value in values.items()
            if type(old.get(name, missing)) is not type(value) or old[name] != value
        }
        if different:
            changes[prefix] = different
    return changes
