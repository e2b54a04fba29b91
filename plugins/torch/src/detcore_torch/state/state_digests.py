"""Batches and the training state as arrays, for step digests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import read_torch_states
from detcore_torch.state.tensor_tree import encode

if TYPE_CHECKING:
    from detcore_torch.state.shared_state import SavedObjects


def as_arrays(value: Any) -> list[Any]:
    """Return the arrays, numbers and texts in a batch, in its order."""
    if isinstance(value, torch.Tensor):
        return [_array(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        found: list[Any] = []
        for each in value:
            found += as_arrays(each)
        return found
    if isinstance(value, bool | int | float):
        return [np.asarray(value)]
    return [value] if isinstance(value, str | bytes | np.ndarray) else []


def name_state(objects: SavedObjects) -> dict[str, np.ndarray]:
    """Return the whole state by name: generators, gradients, models, optimizers, schedulers."""
    found: dict[str, Any] = {}
    found |= {f"random.{name}": array for name, array in _generators()}
    for index, model in enumerate(objects.models):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[_name("gradient", index, name)] = _array(parameter.grad)
    for index, model in enumerate(objects.models):
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                found[_name("model", index, name)] = _array(tensor)
    for index, optimizer in enumerate(objects.optimizers):
        tensors: dict[str, Any] = {}
        settings = encode(optimizer.state_dict(), tensors, "")
        found |= {_name("optimizer", index, name): _array(t) for name, t in tensors.items()}
        found[_name("optimizer", index, "settings")] = _text(settings)
    for index, state in enumerate(objects.capture_schedulers()):
        found[_name("scheduler", index, "state")] = _text(encode(state, {}, ""))
    return found


def _generators() -> Iterator[tuple[str, np.ndarray]]:
    _, words, gauss = random.getstate()
    yield "python", np.array([*words, gauss or 0.0])  # exact: words have 32 bits
    state: Any = np.random.get_state(legacy=False)
    yield (
        "numpy",
        _text(state)
        if state["bit_generator"] != "MT19937"
        else np.append(
            state["state"]["key"], [state["state"]["pos"], state["has_gauss"], state["gauss"]]
        ),
    )
    for name, tensor in read_torch_states().items():
        yield name, _array(tensor)


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor's numbers, without a copy where NumPy has its type."""
    try:
        array: np.ndarray = tensor.numpy()
    except (RuntimeError, TypeError):  # with a gradient, on a GPU, or of a type that NumPy lacks
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        try:
            array = plain.numpy()
        except TypeError:  # such as bfloat16
            array = plain.reshape(-1).view(torch.uint8).numpy()
    return array


def _text(value: Any) -> np.ndarray:
    return np.frombuffer(repr(value).encode(), np.uint8)


def _name(kind: str, index: int, name: str) -> str:
    return f"{kind}-{index}.{name.strip('.')}" if index else f"{kind}.{name.strip('.')}"
