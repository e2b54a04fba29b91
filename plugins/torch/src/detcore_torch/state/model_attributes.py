"""The state of a model that training changes and its ``state_dict`` leaves out.

These are ``requires_grad`` of parameters, ``training`` of modules, buffers that are not
persistent, and attributes of modules that are numbers, strings or lists and dictionaries of them,
such as ``Dropout.p``. Metrics of torchmetrics have another state on each worker.
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

    Create it before training starts: plain values that are still the same as then are settings,
    and not saved.

    Attributes:
        models: The models.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = models
        self._settings = [_read_settings(model) for model in models]
        self._has_warned = False

    def capture(self) -> list[dict[str, Any]]:
        """Return the attributes of each model; tensors are those of the model."""
        self._warn_once()
        return [
            {
                "frozen": [n for n, each in model.named_parameters() if not each.requires_grad],
                "evaluating": [n for n, module in model.named_modules() if not module.training],
                "buffers": {n: each for n, each in _find_buffers(model) if _can_save(each)},
                "changed": _list_changes(settings, _read_settings(model)),
            }
            for model, settings in zip(self.models, self._settings, strict=True)
        ]

    def _warn_once(self) -> None:
        """Warn about buffers that no checkpoint can hold, at the first one."""
        if self._has_warned:
            return
        self._has_warned = True
        for model in self.models:
            for name, buffer in _find_buffers(model):
                if not _can_save(buffer):
                    _logger.warning(
                        "checkpoints do not contain the buffer %s of %s: it is not persistent, and "
                        "%s. After a resume it has the value that the script gives it. If training "
                        "changes it, register it with persistent=True",
                        name, type(model).__name__, buffer.layout,
                    )  # fmt: skip


def capture_metrics(models: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the states of this worker's metrics of torchmetrics, which no ``state_dict`` has."""
    return {name: _move(dict(metric.metric_state), "cpu") for name, metric in _find_metrics(models)}


def restore_metrics(models: Sequence[Any], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore what `capture_metrics` returned."""
    for name, metric in _find_metrics(models):
        for attribute, value in states.get(name, {}).items():
            setattr(metric, attribute, _move(value, metric.device))


def _find_metrics(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(models):
        for name, module in model.named_modules():
            if hasattr(module, "metric_state") and hasattr(module, "add_state"):
                yield f"{index}.{name}", module


def _move(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {name: _move(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_move(item, device) for item in value]
    return value.detach().to(device) if isinstance(value, torch.Tensor) else value


def restore_attributes(model: Any, state: Mapping[str, Any]) -> None:
    """Restore what `ModelAttributes.capture` returned for a model."""
    frozen, evaluating = set(state["frozen"]), set(state["evaluating"])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad is (name in frozen):
            parameter.requires_grad = name not in frozen
    for name, module in model.named_modules():
        module.training = name not in evaluating
        for attribute, value in state["changed"].get(name, {}).items():
            setattr(module, attribute, value)
    restore_buffers(model, state)


def restore_buffers(model: Any, state: Mapping[str, Any]) -> None:
    """Restore the buffers that are not persistent, in place where their shape has not changed."""
    for name, saved in state["buffers"].items():
        prefix, _, leaf = name.rpartition(".")
        module = model.get_submodule(prefix)
        current = module._buffers.get(leaf)
        buffer = saved
        if isinstance(saved, torch.Tensor):
            if isinstance(current, torch.Tensor) and _are_alike(current, saved):
                with torch.no_grad():
                    current.copy_(saved)
                continue
            buffer = saved.to(next(model.parameters(), saved).device)
        module._buffers.pop(leaf, None)
        module.register_buffer(leaf, buffer, persistent=False)


def _are_alike(first: Any, second: Any) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)


def _find_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of all buffers that are not persistent."""
    for prefix, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set & module._buffers.keys()):
            yield f"{prefix}.{name}".removeprefix("."), module._buffers[name]


def _can_save(buffer: Any) -> bool:
    return buffer is None or (buffer.layout is torch.strided and not buffer.is_meta)


def _read_settings(model: Any) -> dict[str, dict[str, Any]]:
    """Return copies of the attributes of each module that are plain values."""
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
    """Return the attributes of a ``LightningModule`` that Lightning itself uses, such as ids."""
    return [
        name
        for each in type(module).__mro__
        if each.__name__ == "LightningModule" and "lightning" in each.__module__
        for name in vars(each())
    ]


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or a string, or a small container of them, and no data."""
    if type(value) in (list, tuple):
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, value))
    if type(value) is dict:
        return len(value) <= _MAX_ITEMS and all(map(_is_plain, [*value, *value.values()]))
    return type(value) in (bool, int, float, str, type(None))


def _list_changes(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the values of each module that are new or different."""
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
