"""Batches and the training state as arrays, for step digests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.trial import read_values
from detcore_torch.libraries import torch
from detcore_torch.state.random_generators import read_torch_states
from detcore_torch.state.tensor_layouts import ALIGNMENT
from detcore_torch.state.user_attributes import (
    TorchCodec,
    list_optimizer_parts,
    list_scheduler_parts,
    list_tensors,
)

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
    """Return the whole state by name: generators, gradients, models, optimizers, schedulers.

    The tensors are those of the live objects, not of their ``state_dict``. A tensor of an optimizer
    that is not aligned has a second entry with the address modulo 64 bytes, because BLAS adds its
    elements in another order.
    """
    arrays: dict[str, Any] = {}
    arrays |= {f"random.{name}": array for name, array in _read_generators()}
    for index, model in enumerate(objects.models):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                arrays[_name_array("gradient", index, name)] = _to_array(parameter.grad)
    names: dict[int, str] = {}
    for index, model in enumerate(objects.models):
        for name, tensor in list_tensors(model):
            arrays[_name_array("model", index, name)] = _to_array(tensor)
            names.setdefault(id(tensor), _name_array("", index, name).lstrip("-."))
    for index, optimizer in enumerate(objects.optimizers):
        values = _read_optimizer(optimizer, _name_array("optimizer", index, ""), names)
        arrays |= values | _find_misaligned(values)
    for index, scheduler in enumerate(objects.schedulers):
        for part, value in list_scheduler_parts(scheduler).items():
            name = _name_array("scheduler", index, part)
            arrays |= read_values(value, name, codec=_ArrayCodec())
    return {name: _encode_plain(value) for name, value in arrays.items()}


def read_live_state(objects: SavedObjects) -> dict[str, Any]:
    """Return flags and plain attributes of modules, and the state of gradient scalers, by name."""
    values: dict[str, Any] = {}
    for index, model in enumerate(objects.models):
        for name, parameter in model.named_parameters():
            values[_name_array("model", index, f"{name}.requires_grad")] = parameter.requires_grad
        for name, module in model.named_modules():
            values[_name_array("model", index, f"{name}.training")] = module.training
        for name, changes in objects.attributes.list_changes(index).items():
            for attribute, value in changes.items():
                path = _name_array("model", index, f"{name}.{attribute}")
                values |= read_values(value, path)
    for index, scaler in enumerate(objects.scalers):
        for name in ("get_scale", "_get_growth_tracker"):  # a scaler of another kind has neither
            if hasattr(scaler, name):
                part = name.rpartition("get_")[2]
                values[_name_array("scaler", index, part)] = getattr(scaler, name)()
    return values


class _ArrayCodec(TorchCodec):
    """Reads tensors with their types, shapes and strides."""

    def read_tensor(self, value: Any) -> np.ndarray | None:
        return _to_array(value) if _is_strided(value) else None


def _read_optimizer(optimizer: Any, prefix: str, names: Mapping[int, str]) -> dict[str, Any]:
    parts = list_optimizer_parts(optimizer, names)
    arrays: dict[str, Any] = {}
    for key, slots in parts["state"].items():
        name = f"{prefix}state[{key!r}]"
        if isinstance(slots, dict) and all(map(_is_strided, slots.values())):
            # The usual case, read without a search.
            arrays |= {f"{name}[{slot!r}]": _to_array(value) for slot, value in slots.items()}
        else:
            arrays |= read_values(slots, name, codec=_ArrayCodec())
    groups = parts["param_groups"]
    return arrays | read_values(groups, f"{prefix}param_groups", codec=_ArrayCodec())


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _find_misaligned(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the addresses of tensors that do not start where PyTorch's allocator would."""
    addresses = {
        name: value.__array_interface__["data"][0] % ALIGNMENT
        for name, value in values.items()
        if isinstance(value, np.ndarray) and value.size
    }
    return {f"{name}.alignment": address for name, address in addresses.items() if address}


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


def _encode_plain(value: Any) -> np.ndarray:
    return _encode_repr(value) if isinstance(value, str) else np.asarray(value)


def _encode_repr(value: Any) -> np.ndarray:
    return np.frombuffer(repr(value).encode(), np.uint8)


def _name_array(kind: str, index: int, name: str) -> str:
    return f"{kind}-{index}.{name.strip('.')}" if index else f"{kind}.{name.strip('.')}"
