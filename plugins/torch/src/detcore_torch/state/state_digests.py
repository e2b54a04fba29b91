"""Batches and the training state as arrays, for step digests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import read_torch_states
from detcore_torch.state.tensor_tree import encode_tree

if TYPE_CHECKING:
    from detcore_torch.state.shared_state import SavedObjects


def list_arrays(value: Any) -> list[Any]:
    """Return the arrays, numbers and strings in a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [_to_array(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        arrays: list[Any] = []
        for item in value:
            arrays += list_arrays(item)
        return arrays
    if isinstance(value, bool | int | float):
        return [np.asarray(value)]
    return [value] if isinstance(value, str | bytes | np.ndarray) else []


def name_state(objects: SavedObjects) -> dict[str, np.ndarray]:
    """Return the whole state by name: generators, gradients, models, optimizers, schedulers."""
    arrays: dict[str, Any] = {}
    arrays |= {f"random.{name}": array for name, array in _read_generators()}
    for index, model in enumerate(objects.models):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                arrays[_name_array("gradient", index, name)] = _to_array(parameter.grad)
    for index, model in enumerate(objects.models):
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                arrays[_name_array("model", index, name)] = _to_array(tensor)
    for index, optimizer in enumerate(objects.optimizers):
        tensors: dict[str, Any] = {}
        settings = encode_tree(optimizer.state_dict(), tensors, "")
        arrays |= {
            _name_array("optimizer", index, name): _to_array(t) for name, t in tensors.items()
        }
        arrays[_name_array("optimizer", index, "settings")] = _encode_repr(settings)
    for index, state in enumerate(objects.capture_schedulers()):
        arrays[_name_array("scheduler", index, "state")] = _encode_repr(encode_tree(state, {}, ""))
    return arrays


def _read_generators() -> Iterator[tuple[str, np.ndarray]]:
    _, words, gauss = random.getstate()
    yield "python", np.array([*words, gauss or 0.0])  # exact, because words have 32 bits
    state: Any = np.random.get_state(legacy=False)
    yield (
        "numpy",
        _encode_repr(state)
        if state["bit_generator"] != "MT19937"
        else np.append(
            state["state"]["key"], [state["state"]["pos"], state["has_gauss"], state["gauss"]]
        ),
    )
    for name, tensor in read_torch_states().items():
        yield name, _to_array(tensor)


def _to_array(tensor: Any) -> np.ndarray:
    """Return a tensor's numbers, without a copy if NumPy has its type."""
    try:
        array: np.ndarray = tensor.numpy()
    except (
        RuntimeError,
        TypeError,
    ):  # it has a gradient, is on a GPU, or NumPy lacks its type
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        try:
            array = plain.numpy()
        except TypeError:  # such as bfloat16
            array = plain.reshape(-1).view(torch.uint8).numpy()
    return array


def _encode_repr(value: Any) -> np.ndarray:
    return np.frombuffer(repr(value).encode(), np.uint8)


def _name_array(kind: str, index: int, name: str) -> str:
    return f"{kind}-{index}.{name.strip('.')}" if index else f"{kind}.{name.strip('.')}"
