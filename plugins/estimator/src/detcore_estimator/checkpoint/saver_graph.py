"""Find out the variables that a saver saves, from the graph in which it was built."""

from __future__ import annotations

import dataclasses
from typing import Any

from detcore_estimator.tensorflow_versions import tf, tf1

# SaveSlices is the V1 format; its inputs are in the same order.
_SAVES = ("SaveV2", "SaveSlices")
# Other parts of a saver's graph, which merge shards and compute the names of files.
_NAMING = (
    "Const",
    "Identity",
    "MergeV2Checkpoints",
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
class SavePlan:
    """All that a saver saves, of all its shards.

    Attributes:
        names: Name of each tensor in the checkpoint.
        slices: For each, which part of a partitioned variable it is, in TensorFlow's notation
            (``"10 4 0,5:-"``); empty for a whole one.
        tensors: The tensors, of any shapes, and of dtypes that NumPy has, too.
    """

    names: list[str]
    slices: list[str]
    tensors: list[Any]


def read_saver(graph: Any, saver: Any) -> SavePlan | None:
    """Return the plan of a saver; None if it does more than its plan would say.

    Args:
        graph: Its graph.
        saver: A built ``tf.compat.v1.train.Saver``.
    """
    if saver.saver_def is None or type(saver).save is not tf1.train.Saver.save:
        return None
    plan = SavePlan([], [], [])
    pending, seen = [graph.get_tensor_by_name(saver.saver_def.save_tensor_name).op], set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        inputs = op.inputs
        if op.type in _SAVES:
            inputs = op.inputs[:3]
            names, slices = (tf.get_static_value(tensor) for tensor in inputs[1:])
            tensors = op.inputs[3:]
            if names is None or slices is None or not all(map(_has_numpy_type, tensors)):
                return None
            plan.names.extend(name.decode() for name in names)
            plan.slices.extend(text.decode() for text in slices)
            plan.tensors.extend(tensors)
        elif op.type not in _NAMING:
            return None
        pending += [*op.control_inputs, *(tensor.op for tensor in inputs)]
    return plan


def _has_numpy_type(tensor: Any) -> bool:
    """Whether NumPy has the type of a tensor; it has none for quantized numbers."""
    dtype = tensor.dtype.base_dtype
    return bool(dtype.is_numpy_compatible) and not dtype.is_quantized
