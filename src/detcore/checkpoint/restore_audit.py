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

from detcore.checkpoint.manifest_fields import AUDIT_FILE
from detcore.contract.controllers import SupportsLiveState, SupportsStateTensors
from detcore.contract.errors import InexactResumeError
from detcore.data import convert_array, digest_array

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
        write_audit(folder, controller.state_tensors(), _read_live(controller))
        return rest

    return write_all


def write_audit(
    folder: Path, tensors: Mapping[str, npt.ArrayLike], live: Mapping[str, Any] | None = None
) -> None:
    """Write the digests of a state into a checkpoint's directory.

    Args:
        folder: The directory.
        tensors: As `SupportsStateTensors.state_tensors` returns them.
        live: As `SupportsLiveState.live_state` returns it.

    Raises:
        FileExistsError: If the directory has a file of this name.
    """
    parts = {} if live is None else live
    document = {
        "version": 1,
        "parts": _describe_tensors(tensors),
        "live": _describe_parts({name: part for name, part in parts.items() if part is not None}),
        "unsaved": [name for name, part in parts.items() if part is None],
    }
    with (folder / AUDIT_FILE).open("x", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")


def read_audit(folder: Path | None) -> Mapping[str, Any] | None:
    """Return what `write_audit` wrote into a worker's directory; None without digests."""
    file = None if folder is None else folder / AUDIT_FILE
    return parse_audit(None if file is None or not file.exists() else file.read_bytes())


def parse_audit(content: bytes | None) -> Mapping[str, Any] | None:
    """Return the content of a file that `write_audit` wrote; None without content."""
    document: dict[str, Any] | None = None if content is None else json.loads(content)
    return document


def check_restored(
    controller: object, saved: Mapping[str, Any] | None, *, reaction: str
) -> dict[str, int] | None:
    """Compare the restored state with the digests in a checkpoint.

    Args:
        controller: Has restored the state.
        saved: The result of `read_audit` for this worker's directory in the checkpoint.
        reaction: ``reproducibility.inexact_resume``. "ignore" checks nothing.

    Returns:
        The digests of the `state_tensors`, by name; None if nothing was checked.

    Raises:
        InexactResumeError: If parts differ; the message names them. Also if `reaction` is "fail"
            and training had changed parts that the checkpoint does not contain.
    """
    if not isinstance(controller, SupportsStateTensors):
        return None
    return check_parts(
        saved,
        controller.state_tensors,
        reaction=reaction,
        live=lambda: _read_live(controller),
    )


def check_parts(
    saved: Mapping[str, Any] | None,
    tensors: Callable[[], Mapping[str, npt.ArrayLike]],
    *,
    reaction: str,
    live: Callable[[], Mapping[str, Any]] = dict,
) -> dict[str, int] | None:
    """Compare the restored state with the result of `read_audit`; see `check_restored`."""
    if saved is None or reaction == "ignore":
        return None
    parts = _describe_tensors(tensors())
    lines = _list_differences(saved["parts"], parts)
    # An attribute that only the restore has changed, such as a count of restores, is not state.
    shared = {
        name: part for name, part in live().items() if part is not None and name in saved["live"]
    }
    lines += _list_differences(saved["live"], _describe_parts(shared))
    if lines:
        raise InexactResumeError(
            f"the restored state is not the state that was saved:\n{_format_lines(lines)}\n"
            "Training would not continue as if it had not been interrupted. Save and restore these "
            "parts in the trial's code, or in the framework's plugin.\n"
            "To train on nevertheless:  --set reproducibility.inexact_resume=ignore (in a "
            "standalone script, the argument inexact_resume or the configuration)"
        )
    if saved["unsaved"]:
        message = (
            "training had changed parts that the checkpoint does not contain, and which have "
            f"their initial values now:\n{_format_lines(saved['unsaved'])}\n"
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


def _describe_tensors(tensors: Mapping[str, npt.ArrayLike]) -> dict[str, _Part]:
    return {name: _describe_array(convert_array(value)) for name, value in tensors.items()}


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
