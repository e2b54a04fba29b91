"""Attributes of a `PyTorchTrial`, which are saved although the context has not wrapped them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detcore.trial import AttributeTracker
from detcore_torch._attributes import TorchCodec
from detcore_torch._callback_attributes import warn_of_unsaved
from detcore_torch._torch import torch

if TYPE_CHECKING:
    from detcore_torch._trial import PyTorchTrial


class TrialAttributes:
    """Saves and restores the attributes that a trial changes; warns about the other ones.

    Create it before training starts.

    Args:
        trial: The trial.
        ignored_objects: Objects that are saved elsewhere, such as models and callbacks.
    """

    def __init__(self, trial: PyTorchTrial, *, ignored_objects: Collection[object]) -> None:
        ignored = [trial, *ignored_objects, *_list_containers(trial, ignored_objects)]
        self._tracker = AttributeTracker(trial, ignored_objects=ignored, codec=TorchCodec())
        self._saved: Mapping[str, Any] = {}
        self._has_warned = False

    def capture(self) -> dict[str, Any]:
        """Return the changed attributes by name; warn once about those it cannot return."""
        if not self._has_warned:
            warn_of_unsaved("trial", self._tracker)
        self._has_warned = True
        return self._tracker.capture()

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what `capture` returned."""
        self._saved = values
        self._tracker.restore(values)

    def restore_again(self) -> None:
        """Restore the values of the last `restore`, after hooks that may have changed them."""
        self._tracker.note_objects()
        self._tracker.restore(self._saved)


def _list_containers(trial: PyTorchTrial, saved: Collection[object]) -> Iterator[torch.nn.Module]:
    """Yield the modules in attributes that contain a saved model, such as one with its loss."""
    identities = {id(each) for each in saved if isinstance(each, torch.nn.Module)}
    for value in vars(trial).values():
        modules = value.modules() if isinstance(value, torch.nn.Module) else ()
        if any(id(module) in identities for module in modules):
            yield value
