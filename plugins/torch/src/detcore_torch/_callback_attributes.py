"""Attributes of the user's callbacks, which are saved although the callbacks have no state_dict."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from detcore.trial import AttributeTracker
from detcore_torch._attributes import TorchCodec

_logger = logging.getLogger("detcore.torch")


class CallbackAttributes:
    """Saves and restores the attributes that callbacks change; warns about the other ones.

    Create it before training starts.

    Args:
        callbacks: The callbacks by name.
        ignored_objects: Objects that are saved elsewhere, such as models and optimizers.
    """

    def __init__(
        self, callbacks: Mapping[str, object], *, ignored_objects: Iterable[object] = ()
    ) -> None:
        ignored = [*ignored_objects, *callbacks.values()]
        self._trackers = {
            name: AttributeTracker(callback, ignored_objects=ignored, codec=TorchCodec())
            for name, callback in callbacks.items()
        }
        self._has_warned = False

    def note_objects(self, ignored_objects: Iterable[object] = ()) -> None:
        """Note the objects that the callbacks have created; see `AttributeTracker`."""
        ignored = list(ignored_objects)
        for tracker in self._trackers.values():
            tracker.note_objects(ignored)

    def capture(self) -> dict[str, dict[str, Any]]:
        """Return the changed attributes by callback; warn once about those it cannot return."""
        if not self._has_warned:
            for name, tracker in self._trackers.items():
                warn_of_unsaved(f"callback {name}", tracker)
        self._has_warned = True
        return {name: tracker.capture() for name, tracker in self._trackers.items()}

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `capture` returned; a callback that is new keeps its attributes."""
        for name, tracker in self._trackers.items():
            tracker.restore(states.get(name, {}))


def warn_of_unsaved(owner: str, tracker: AttributeTracker) -> None:
    """Name the attributes that have changed and that a checkpoint cannot hold, if there are any."""
    unsaved = tracker.list_changed()
    if unsaved:
        _logger.warning(
            "the %s has changed %s, which a checkpoint cannot hold: after a resume, it starts "
            "without the change. Keep numbers, strings, arrays, tensors and containers of them, or "
            "create the object in __init__ and give it state_dict and load_state_dict",
            owner,
            ", ".join(unsaved),
        )


def name_callbacks(callbacks: Iterable[object]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks by the names of their classes, which are numbered from the second on."""
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        yield (f"{kind}-{counts[kind]}" if counts[kind] else kind), callback
        counts[kind] += 1
