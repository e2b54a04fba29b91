"""Attributes of the user's objects and variables of the user's functions, saved by default."""

from __future__ import annotations

import collections
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from detcore.trial import AttributeCodec, AttributeTracker, FunctionTracker
from detcore_torch.libraries import torch
from detcore_torch.state.model_attributes import read_buffers, restore_buffers

FUNCTIONS, TRAINER = "$functions", "$trainer"
_OWNERS = {FUNCTIONS: "", TRAINER: "trainer."}
_KINDS = (
    torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.Generator,
)  # fmt: skip


class UserAttributes:
    """Saves and restores the changes that training makes to the user's objects.

    Create it before training starts.

    Args:
        owners: Callbacks or trials, by name.
        functions: Functions, and objects with methods, whose global and enclosing variables are
            saved under the name `FUNCTIONS`.
        frame: See `detcore.trial.FunctionTracker`; requires `functions`.
        ignored: Names of attributes of an owner that belong to the library.
        ignored_objects: Objects that are saved elsewhere, such as models and optimizers.
    """

    def __init__(
        self,
        owners: Mapping[str, object],
        *,
        functions: Mapping[str, object] | None = None,
        frame: types.FrameType | None = None,
        ignored: Mapping[str, Collection[str]] | None = None,
        ignored_objects: Iterable[object] = (),
    ) -> None:
        objects = [*ignored_objects, *owners.values()]
        self._trackers = {
            name: AttributeTracker(
                owner,
                prefix=f"{name.lstrip('$')}.",
                ignored=(ignored or {}).get(name, ()),
                ignored_objects=objects,
                codec=TorchCodec(),
            )
            for name, owner in owners.items()
        }
        if functions is not None:
            self._trackers[FUNCTIONS] = FunctionTracker(
                functions,
                frame=frame,
                kinds=_KINDS,
                prefix="",
                ignored_objects=objects,
                codec=TorchCodec(),
            )
        self._saved: Mapping[str, Mapping[str, Any]] = {}

    def note_objects(self, ignored_objects: Iterable[object] = ()) -> None:
        """Record the objects that the owners have created; see `AttributeTracker`."""
        ignored = list(ignored_objects)
        for tracker in self._trackers.values():
            tracker.note_objects(ignored)

    def capture(self) -> dict[str, dict[str, Any]]:
        """Return the changes by owner; the first call warns about changes that cannot be saved."""
        return {name: tracker.capture() for name, tracker in self._trackers.items()}

    def read_live(self, prefix: str = "", *, omitted: Collection[str] = ()) -> dict[str, Any]:
        """Return the changes of all owners; see `AttributeTracker.read_live`.

        Args:
            prefix: Prefix of the owners' names, such as ``"callback "``.
            omitted: Names of owners to omit.
        """
        values: dict[str, Any] = {}
        for name, tracker in self._trackers.items():
            if name not in omitted:
                values |= tracker.read_live(_OWNERS.get(name, f"{prefix}{name}."))
        return values

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore a result of `capture`; a new owner keeps its attributes."""
        self._saved = states
        for name, tracker in self._trackers.items():
            tracker.restore(states.get(name, {}))

    def restore_again(self) -> None:
        """Restore the values of the last `restore`, after hooks that may have changed them."""
        self.note_objects()
        self.restore(self._saved)


def name_callbacks(callbacks: Iterable[object]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks by class name; repeated names are numbered."""
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        yield (f"{kind}-{counts[kind]}" if counts[kind] else kind), callback
        counts[kind] += 1


class TorchCodec(AttributeCodec):
    """Reads and restores tensors, ``torch.Generator`` and objects with ``state_dict``."""

    def read_tensor(self, value: Any) -> Any:
        """Return the bytes of a tensor, or None."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

    def assign_tensor(self, current: Any, saved: Any) -> Any:
        """Copy a saved tensor into the current tensor, which may be on a GPU, if it fits."""
        if not isinstance(current, torch.Tensor) or (current.shape, current.dtype) != (
            saved.shape,
            saved.dtype,
        ):
            return saved
        with torch.no_grad():
            return current.copy_(saved)

    def read_parts(self, value: Any) -> Any:
        """Return the tensors of a module, and the attributes of an optimizer or a scheduler."""
        if isinstance(value, torch.nn.Module):
            return dict(list_tensors(value))
        if isinstance(value, torch.optim.Optimizer):
            return list_optimizer_parts(value, {})
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            return list_scheduler_parts(value)
        return super().read_parts(value)

    def get_state(self, value: Any) -> Any:
        """Return the state of a generator or module, or the result of ``state_dict``."""
        if isinstance(value, torch.nn.Module):
            return {"state": value.state_dict(), "buffers": read_buffers(value)}
        return value.get_state() if isinstance(value, torch.Generator) else super().get_state(value)

    def set_state(self, value: Any, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        if isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, torch.nn.Module):
            value.load_state_dict(state["state"])
            restore_buffers(value, state)
        else:
            super().set_state(value, state)


def list_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a module by name, in the order of ``state_dict``.

    Buffers that are not persistent are included, and tensors that are not stored are omitted.
    """
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.layout is torch.strided
                and not tensor.is_meta
                and not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
            ):
                yield f"{prefix}.{name}".removeprefix("."), tensor


def list_optimizer_parts(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the live state and the settings of an optimizer.

    Args:
        optimizer: The optimizer.
        names: Names of parameters by their id; other parameters are numbered.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = {id(p): names.get(id(p), index) for index, p in enumerate(parameters)}
    return {
        "state": {keys.get(id(key), key): value for key, value in optimizer.state.items()},
        "param_groups": [
            {**group, "params": [keys[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ],
    }


def list_scheduler_parts(scheduler: Any) -> dict[str, Any]:
    """Return the live attributes of a learning rate scheduler, without its optimizer."""
    return {name: value for name, value in vars(scheduler).items() if name != "optimizer"}
