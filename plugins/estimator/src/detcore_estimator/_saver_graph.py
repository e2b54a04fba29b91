"""Find out the variables that a saver saves, from the graph in which it was built."""

from __future__ import annotations

import dataclasses
from typing import Any

from detcore_estimator._tf import tf, tf1

# SaveSlices is the V1 format; its inputs are in the same order.
_SAVES = ("SaveV2", "SaveSlices")
_MERGE = "MergeV2Checkpoints"
# Other parts of a saver's graph, which compute the names of files.
_NAMING = (
    "Const",
    "Identity",
    "NoOp",
    "Pack",
    "Placeholder",
    "PlaceholderWithDefault",
    "RegexFullMatch",
    "Select",
    "SelectV2",
    "ShardedFilename",
    "ShardedFilespec",
    "StaticRegexFullMatch",
    "StringJoin",
)


@dataclasses.dataclass(frozen=True, slots=True)
class SaveOp:
    """One operation that saves tensors to a file.

    Attributes:
        names: Name of each tensor in the checkpoint.
        slices: For each, which part of a partitioned variable it is, in TensorFlow's notation
            (``"10 4 0,5:-"``); empty for a whole one.
        tensors: The tensors, of any shapes and dtypes.
    """

    names: tuple[str, ...]
    slices: tuple[str, ...]
    tensors: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SavePlan:
    """All that a saver saves.

    Attributes:
        saves: One for each shard, in their order.
        is_merged: Whether each shard is written next to the checkpoint first, and then merged.
    """

    saves: tuple[SaveOp, ...]
    is_merged: bool


def read_saver(graph: Any, saver: Any) -> SavePlan | None:
    """Return the plan of a saver, or None if the form of its graph is unknown.

    Args:
        graph: Its graph.
        saver: A built ``tf.compat.v1.train.Saver``.
    """
    if saver.saver_def is None or type(saver).save is not tf1.train.Saver.save:
        return None
    found = _operations(graph, saver.saver_def.save_tensor_name)
    if found is None:
        return None
    saves = [op for op in found if op.type in _SAVES]
    merges = [op for op in found if op.type == _MERGE]
    if merges:
        order = _merged(merges[0])
        if len(merges) > 1 or {op.inputs[0].name for op in saves} != set(order):
            return None
        saves.sort(key=lambda op: order.index(op.inputs[0].name))
    elif any(op.type == "SaveV2" for op in saves[1:]):
        return None
    read = [_read(op) for op in saves]
    if not read or None in read:
        return None
    return SavePlan(tuple(save for save in read if save is not None), bool(merges))


def _operations(graph: Any, name: str) -> list[Any] | None:
    """Return the operations that run when a saver saves, except those that compute its tensors.

    They are in the order of their creation; None if there are operations of unknown kinds.
    """
    pending, found = [graph.get_tensor_by_name(name).op], {}
    while pending:
        op = pending.pop()
        if op.name in found:
            continue
        found[op.name] = op
        if op.type not in (*_SAVES, _MERGE, *_NAMING):
            return None
        pending += op.control_inputs
        inputs = op.inputs[:3] if op.type in _SAVES else op.inputs
        pending += [tensor.op for tensor in inputs]
    return sorted(found.values(), key=lambda op: op._id)


def _merged(merge: Any) -> list[str]:
    """Return the names of the tensors with the prefixes that are merged, in their order."""
    prefixes = merge.inputs[0].op
    return [tensor.name for tensor in prefixes.inputs] if prefixes.type == "Pack" else []


def _read(op: Any) -> SaveOp | None:
    names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:3])
    if names is None or slices is None:
        return None
    return SaveOp(
        tuple(name.decode() for name in names),
        tuple(text.decode() for text in slices),
        tuple(op.inputs[3:]),
    )
