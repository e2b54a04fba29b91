"""What training changes in a model and its ``state_dict`` leaves out.

These are ``requires_grad`` of parameters, ``training`` of modules, buffers that are not
persistent, and attributes of modules that are numbers or strings, such as ``Dropout.p``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detcore_torch._torch import torch

__all__ = ["ModelAttributes", "restore_attributes", "restore_buffers"]

_logger = logging.getLogger("detcore.torch")


class ModelAttributes:
    """Captures the attributes of models.

    Create it before training starts: numbers and strings that are still the same as then are
    settings, and not saved.

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
    """Return the attributes of each module that are plain values."""
    kinds = (bool, int, float, str, type(None))
    return {
        prefix: {
            name: value
            for name, value in vars(module).items()
            if type(value) in kinds and name != "training"
        }
        for prefix, module in model.named_modules()
    }


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
