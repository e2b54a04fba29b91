"""Attributes of the user's objects and variables of the user's functions, saved by default."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from detcore.trial import AttributeCodec, AttributeTracker, FunctionTracker
from detcore_torch.libraries import torch

FUNCTIONS = "$functions"
_KINDS = (torch.nn.Module, torch.optim.Optimizer, torch.Generator)


class UserAttributes:
    """Saves and restores the changes that training makes to the user's objects.

    Create it before training starts.

    Args:
        owners: Callbacks or trials, by name.
        functions: Functions, and objects with methods, whose global and enclosing variables are
            saved under the name `FUNCTIONS`.
        ignored: Names of attributes of an owner that belong to the library.
        ignored_objects: Objects that are saved elsewhere, such as models and optimizers.
    """

    def __init__(
        self,
        owners: Mapping[str, object],
        *,
        functions: Mapping[str, object] | None = None,
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
                functions, kinds=_KINDS, prefix="", ignored_objects=objects, codec=TorchCodec()
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

    def get_state(self, value: Any) -> Any:
        """Return the state of a generator, or the result of ``state_dict``."""
        return value.get_state() if isinstance(value, torch.Generator) else super().get_state(value)

    def set_state(self, value: Any, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        if isinstance(value, torch.Generator):
            value.set_state(state)
        else:
            super().set_state(value, state)
