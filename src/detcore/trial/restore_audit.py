"""Check that a resumed trial has the state that its checkpoint was saved with.

A checkpoint contains a digest of each part of the state, by name. After the restore, the parts are
read from the live objects and compared, before the first batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.contract.controllers import SupportsLiveState, SupportsStateTensors
from detcore.contract.errors import InexactResumeError
from detcore.data import digest_array

AUDIT_FILE = "audit.json"
"""File of a checkpoint with the digests, for each worker."""
# Between two batches, gradients that were applied may or may not exist.
_GRADIENT = "gradient."
_NUM_NAMED = 5
_MAX_VALUE_CHARS = 60  # longer values are digested

_logger = logging.getLogger("detcore.trial")
# Type, shape, digest or short value, and strides unless the array is contiguous.
_Part = Sequence[object]


def audited(
    controller: object, write: Callable[[Path], Callable[[], None] | None]
) -> Callable[[Path], Callable[[], None] | None]:
    """Return a function that writes a checkpoint's files and the digests of the state.

    Args:
        controller: Has the state. If it has no `state_tensors`, no digests are written.
        write: Writes the other files; its result is returned.
    """
    if not isinstance(controller, SupportsStateTensors):
        return write

    def write_all(folder: Path) -> Callable[[], None] | None:
        rest = write(folder)
        live = _read_live(controller)
        document = {
            "version": 1,
            "parts": _describe_tensors(controller),
            "live": _describe_parts({n: part for n, part in live.items() if part is not None}),
            "unsaved": [name for name, part in live.items() if part is None],
        }
        (folder / AUDIT_FILE).write_text(json.dumps(document) + "\n", encoding="utf-8")
        return rest

    return write_all


def check_restored(
    controller: object, folder: Path | None, *, reaction: str
) -> dict[str, int] | None:
    """Compare the restored state with the digests in a checkpoint.

    Args:
        controller: Has restored the state.
        folder: This worker's directory in the checkpoint; None if no directory belongs to it.
        reaction: ``reproducibility.inexact_resume``. "ignore" checks nothing.

    Returns:
        The digests of the `state_tensors`, by name; None if nothing was checked.

    Raises:
        InexactResumeError: If parts differ; the message names them. Also if `reaction` is "fail"
            and training had changed parts that the checkpoint does not contain.
    """
    if reaction == "ignore" or folder is None or not isinstance(controller, SupportsStateTensors):
        return None
    file = folder / AUDIT_FILE
    if not file.exists():
        return None
    document = json.loads(file.read_text(encoding="utf-8"))
    parts = _describe_tensors(controller)
    lines = _list_differences(document["parts"], parts)
    live = {name: part for name, part in _read_live(controller).items() if part is not None}
    # An attribute that only the restore has changed, such as a count of restores, is not state.
    shared = {name: part for name, part in live.items() if name in document["live"]}
    lines += _list_differences(document["live"], _describe_parts(shared))
    if lines:
        raise InexactResumeError(
            f"the restored state is not the state that was saved:\n{_format_lines(lines)}\n"
            "Training would not continue as if it had not been interrupted. Save and restore these "
            "parts in the trial's code, or in the framework's plugin.\n"
            "To train on nevertheless:  --set reproducibility.inexact_resume=ignore"
        )
    if document["unsaved"]:
        message = (
            "training had changed parts that the checkpoint does not contain, and which have "
            f"their initial values now:\n{_format_lines(document['unsaved'])}\n"
            "Use numbers, strings, arrays, tensors or containers of these, or give the objects "
            "methods that save and load their state."
        )
        if reaction == "fail":
            raise InexactResumeError(message)
        _logger.warning("%s", message)
    _logger.debug("%d parts of the state are restored", len(parts) + len(shared))
    return {name: int(str(part[2]), 16) for name, part in parts.items()}


def _read_live(controller: object) -> Mapping[str, Any]:
    return controller.live_state() if isinstance(controller, SupportsLiveState) else {}


def _format_lines(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _NUM_NAMED} more parts"] if len(lines) > _NUM_NAMED else []
    return "\n".join(f"  {line}" for line in [*lines[:_NUM_NAMED], *more])


def _describe_tensors(controller: SupportsStateTensors) -> dict[str, _Part]:
    return {n: _describe_array(np.asarray(v)) for n, v in controller.state_tensors().items()}


def _describe_parts(parts: Mapping[str, Any]) -> dict[str, _Part]:
    """Return the description of each part, by name."""
    return {name: _describe_part(part) for name, part in parts.items()}


def _describe_part(part: Any) -> _Part:
    if type(part) in (bool, int, float, str):
        text = repr(part) if type(part) is not str else part
        if len(text) <= _MAX_VALUE_CHARS:
            return [type(part).__name__, [], {"value": text}]
        part = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    return _describe_array(np.asarray(part))


def _describe_array(array: npt.NDArray[Any]) -> _Part:
    strides = [] if array.flags.c_contiguous else [list(array.strides)]
    return [str(array.dtype), list(array.shape), f"{digest_array(array):016x}", *strides]


def _list_differences(saved: Mapping[str, _Part], present: Mapping[str, _Part]) -> list[str]:
    """Return a line for each part that differs."""
    lines = []
    for name in dict.fromkeys([*saved, *present]):
        before, after = saved.get(name), present.get(name)
        if before == after or (name.startswith(_GRADIENT) and None in (before, after)):
            continue
        if after is None:
            lines.append(
                f"{name} was saved and not restored: it is missing, or has its initial value"
            )
        elif before is None:
            lines.append(f"{name} exists now and was not saved")
        elif isinstance(before[2], dict) and isinstance(after[2], dict):
            lines.append(
                f"{name} was saved and not restored: it was {before[2]['value']} and is "
                f"{after[2]['value']}"
            )
        elif before[:2] != after[:2]:
            lines.append(
                f"{name} was saved as {before[0]} {before[1]} and is {after[0]} {after[1]} now"
            )
        elif before[2] == after[2]:
            lines.append(f"{name} was saved with the strides {before[3:]}, and has {after[3:]} now")
        else:
            lines.append(f"{name} was saved and not restored: its values differ")
    return lines
