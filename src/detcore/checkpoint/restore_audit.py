"""Check that a resumed trial has the state that its checkpoint was saved with.

A checkpoint contains a digest of each part of the state, by name. After the restore, the parts are
read from the live objects and compared, before the first batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy.typing as npt

from detcore.checkpoint.manifest_fields import AUDIT_FILE
from detcore.contract.controllers import SupportsStateTensors
from detcore.contract.errors import InexactResumeError
from detcore.data import convert_array, digest_array

# Between two batches, gradients that were applied may or may not exist.
_GRADIENT = "gradient."
_NUM_NAMED = 5


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
        write_audit(folder, controller.state_tensors())
        return rest

    return write_all


def write_audit(folder: Path, tensors: Mapping[str, npt.ArrayLike]) -> None:
    """Write the digests of a state into a checkpoint's directory.

    Raises:
        FileExistsError: If the directory has a file of this name.
    """
    document = {"version": 1, "parts": _describe_parts(tensors)}
    with (folder / AUDIT_FILE).open("x", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")


def read_audit(folder: Path | None) -> Mapping[str, list[object]] | None:
    """Return the digests in a worker's directory of a checkpoint, by part; None without digests."""
    file = None if folder is None else folder / AUDIT_FILE
    if file is None or not file.exists():
        return None
    parts: dict[str, list[object]] = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return parts


def check_restored(controller: object, folder: Path | None, *, reaction: str) -> None:
    """Compare the restored state with the digests in a checkpoint.

    Args:
        controller: Has restored the state.
        folder: This worker's directory in the checkpoint; None if no directory belongs to it.
        reaction: ``reproducibility.inexact_resume``. "ignore" checks nothing.

    Raises:
        InexactResumeError: If parts differ; the message names them.
    """
    if isinstance(controller, SupportsStateTensors):
        check_parts(read_audit(folder), controller.state_tensors, reaction=reaction)


def check_parts(
    saved: Mapping[str, list[object]] | None,
    tensors: Callable[[], Mapping[str, npt.ArrayLike]],
    *,
    reaction: str,
) -> None:
    """Compare the restored state with the result of `read_audit`; see `check_restored`."""
    if saved is None or reaction == "ignore":
        return
    present = _describe_parts(tensors())
    lines = _list_differences(saved, present)
    if not lines:
        logging.getLogger("detcore.trial").debug("%d parts of the state are restored", len(saved))
        return
    more = [f"and {len(lines) - _NUM_NAMED} more parts"] if len(lines) > _NUM_NAMED else []
    listing = "\n".join(f"  {line}" for line in [*lines[:_NUM_NAMED], *more])
    raise InexactResumeError(
        f"the restored state is not the state that was saved:\n{listing}\n"
        "Training would not continue as if it had not been interrupted. Save and restore these "
        "parts in the trial's code, or in the framework's plugin.\n"
        "To train on nevertheless:  --set reproducibility.inexact_resume=ignore (in a standalone "
        "script, the argument inexact_resume or the configuration)"
    )


def _describe_parts(tensors: Mapping[str, npt.ArrayLike]) -> dict[str, list[object]]:
    """Return type, shape and digest of each part, by name."""
    parts: dict[str, list[object]] = {}
    for name, value in tensors.items():
        array = convert_array(value)
        parts[name] = [str(array.dtype), list(array.shape), f"{digest_array(array):016x}"]
    return parts


def _list_differences(
    saved: Mapping[str, list[object]], present: Mapping[str, list[object]]
) -> list[str]:
    """Return a line for each part that differs."""
    lines = []
    for name in dict.fromkeys([*saved, *present]):
        before, after = saved.get(name), present.get(name)
        if before == after or (name.startswith(_GRADIENT) and None in (before, after)):
            continue
        if after is None:
            lines.append(f"{name} was saved and does not exist now")
        elif before is None:
            lines.append(f"{name} exists now and was not saved")
        elif before[:2] != after[:2]:
            lines.append(
                f"{name} was saved as {before[0]} {before[1]} and is {after[0]} {after[1]} now"
            )
        else:
            lines.append(f"{name} was saved and not restored: its values differ")
    return lines
