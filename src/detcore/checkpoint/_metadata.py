"""Check the metadata of a checkpoint before anything is written."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from detcore.errors import InvalidCheckpointError

__all__ = ["check_metadata", "plain_metadata"]

_MAX_DEPTH = 64


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON values, with `steps_completed` as an int.

    NumPy scalars become numbers, tuples become lists.

    Raises:
        InvalidCheckpointError: If `steps_completed` is missing or not a whole number, or a value is
            not JSON; the message names the key.
    """
    plain = plain_metadata(metadata)
    if "steps_completed" not in plain:
        given = ", ".join(repr(key) for key in plain) or "nothing"
        raise InvalidCheckpointError(
            f"the checkpoint's metadata has no 'steps_completed' (it has: {given}).\n"
            "Training resumes from the checkpoint with the most steps, so each says its own.\n"
            "Pass metadata={'steps_completed': <batches trained so far>}. Nothing was written."
        )
    plain["steps_completed"] = _steps(plain["steps_completed"])
    return plain


def plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON values; a worker's part need not have `steps_completed`.

    Raises:
        InvalidCheckpointError: If a value is not JSON; the message names the key.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidCheckpointError(
            f"checkpoint metadata is a {type(metadata).__name__}; expected a dictionary, such as "
            "{'steps_completed': 100}"
        )
    plain: dict[str, Any] = _plain(metadata, "metadata", 0)
    return plain


def _steps(value: Any) -> int:
    if not isinstance(value, bool):
        try:
            steps = operator.index(value)
        except TypeError:
            pass
        else:
            if steps >= 0:
                return steps
    raise InvalidCheckpointError(
        f"metadata['steps_completed'] is {value!r}; expected a whole number, 0 or more.\n"
        "It is the number of batches trained so far. Nothing was written."
    )


def _plain(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise _not_json(where, value, "JSON has no NaN and no infinity; write None or a text")
    if depth > _MAX_DEPTH:
        raise _not_json(where[:80], "...", "it is nested too deeply, or holds itself")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _not_json(f"{where}[{key!r}]", key, "keys must be texts")
        return {key: _plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _plain(value.item(), where, depth + 1)  # a NumPy scalar or array without axes
    raise _not_json(where, value, f"a {type(value).__name__} is not JSON")


def _not_json(where: str, value: object, reason: str) -> InvalidCheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return InvalidCheckpointError(
        f"{where} is {shown}, which cannot be saved: {reason}.\n"
        "Metadata holds texts, numbers, booleans, None, lists and dictionaries of these.\n"
        "Write anything else to a file of the checkpoint. Nothing was written."
    )
