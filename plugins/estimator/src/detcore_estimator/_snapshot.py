"""Copy the tensors of savers inside a session, to be written by another thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import ContextStateError
from detcore.types import TensorInfo
from detcore_estimator._saver_graph import SaveOp, SavePlan
from detcore_estimator._tf import tf, tf1

# The types that both variables and TensorFlow's savers take.
_COPIED = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "string"),
)
_HELD, _TAKEN, _DROPPED = range(3)


def can_be_copied(plan: SavePlan) -> bool:
    """Whether all tensors of a plan are of types that can be copied inside a session."""
    tensors = [tensor for save in plan.saves for tensor in save.tensors]
    return all(tensor.dtype.base_dtype.name in _COPIED for tensor in tensors)


class SnapshotOps:
    """Operations that copy what savers save, and that write the copies.

    The copies stay inside the session: in TensorFlow's memory, made by its threads, of any type.
    They are real copies, so it does not matter how an operation changes a variable meanwhile.
    Their memory is kept from one snapshot to the next, because new memory is several times slower.

    Args:
        graph: The graph, not finalized; the operations are added to it.
        plans: The savers' plans, by names of the caller; `can_be_copied` holds for each.

    Attributes:
        places_in_use: Held while copies are made or written: there is one place for each tensor.
    """

    def __init__(self, graph: Any, plans: Mapping[str, SavePlan]) -> None:
        self._plans = dict(plans)
        self._saves = [(name, save) for name in plans for save in plans[name].saves]
        self._last: Snapshot | None = None
        self.places_in_use = threading.Lock()
        if not plans:
            return
        with (
            graph.as_default(),
            tf1.name_scope("detcore_snapshot"),
            tf.device("/device:CPU:0"),
        ):
            self._shapes = [
                [tf.shape(tensor, tf.int64) for tensor in save.tensors] for _, save in self._saves
            ]
            places = [[_Place(tensor, graph) for tensor in save.tensors] for _, save in self._saves]
            self._copy = tf.group(*(place.fill for row in places for place in row))
            self._prefixes = {name: tf1.placeholder(tf.string, [], name="prefix") for name in plans}
            self._write_now = self._writers([save.tensors for _, save in self._saves])
            self._write = self._writers([[place.content for place in row] for row in places])

    def _writers(self, values: Sequence[Sequence[Any]]) -> Any:
        """Return the operation that writes all files, given the values of each save."""
        found, first = [], 0
        for name, plan in self._plans.items():
            end = first + len(plan.saves)
            found.append(_writer(plan, values[first:end], self._prefixes[name]))
            first = end
        return tf.group(*found)

    def take(self, session: Any) -> Snapshot:
        """Copy all tensors now; a previous copy that was not written is dropped.

        Args:
            session: The session.
        """
        with self.places_in_use:
            if self._last is not None:
                self._last.drop()
            if self._plans:
                session.run(self._copy)
            self._last = Snapshot(self, session)
            return self._last

    def write_now(self, session: Any, prefixes: Mapping[str, str]) -> None:
        """Write the variables themselves, while nothing changes them.

        Args:
            session: The session.
            prefixes: For each plan the prefix of its files.
        """
        if self._plans:
            session.run(self._write_now, self._prefix_feeds(prefixes))

    def tensors(self, session: Any, files: Mapping[str, str]) -> list[TensorInfo]:
        """Return the saved tensors, with their current shapes.

        Args:
            session: The session.
            files: For each plan the prefix of its files.
        """
        shapes = session.run(self._shapes) if self._plans else []
        found: dict[tuple[str, str], TensorInfo] = {}
        for (plan, save), values in zip(self._saves, shapes, strict=True):
            shards = self._plans[plan].saves
            number = next(index for index, shard in enumerate(shards) if shard is save)
            file = f"{files[plan]}.data-{number:05d}-of-{len(shards):05d}"
            for name, spec, tensor, value in zip(
                save.names, save.slices, save.tensors, values, strict=True
            ):
                # "10 4 0,5:-": the shape of the whole, then the part of each axis.
                shape = spec.split()[:-1] if spec else value
                info = TensorInfo(
                    name, tuple(int(size) for size in shape), tensor.dtype.base_dtype.name, file
                )
                found[name, file] = info
        return list(found.values())

    def run_write(self, session: Any, prefixes: Mapping[str, str]) -> None:
        """Write the copies that were made last; the caller holds `places_in_use`."""
        if not self._plans:
            return
        # On this thread: the session's own may be few, and training needs them.
        options = tf1.RunOptions(inter_op_thread_pool=-1)
        session.run(self._write, self._prefix_feeds(prefixes), options=options)

    def _prefix_feeds(self, prefixes: Mapping[str, str]) -> dict[Any, str]:
        return {placeholder: prefixes[name] for name, placeholder in self._prefixes.items()}


class Snapshot:
    """Copies that wait for being written, once; made by `SnapshotOps.take`."""

    def __init__(self, operations: SnapshotOps, session: Any) -> None:
        self._operations = operations
        self._session = session
        self._state = _HELD
        self._lock = threading.Lock()

    def write(self, prefixes: Mapping[str, str]) -> None:
        """Write the files; from any thread, while the session is open.

        Args:
            prefixes: For each plan the prefix of its files.

        Raises:
            ContextStateError: If they were written or dropped before.
        """
        with self._operations.places_in_use:
            if not self._becomes(_TAKEN):
                raise ContextStateError(
                    "this copy of the variables is gone: it was written, or a later one was "
                    "made.\nWrite each snapshot once, before the next is taken."
                )
            self._operations.run_write(self._session, prefixes)

    def drop(self) -> None:
        """Drop the copies, unless they were written."""
        self._becomes(_DROPPED)

    def _becomes(self, state: int) -> bool:
        with self._lock:
            was_held = self._state == _HELD
            if was_held:
                self._state = state
            return was_held


class _Place:
    """The copy of one tensor: a variable of the graph that is in no collection.

    Attributes:
        content: The copy.
        fill: The operation that copies, reusing the memory of the previous copy if it fits.
    """

    def __init__(self, tensor: Any, graph: Any) -> None:
        shape = tensor.shape if tensor.shape.is_fully_defined() else []
        self.content = tf.raw_ops.VariableV2(
            shape=shape,
            dtype=tensor.dtype.base_dtype,
            shared_name=graph.unique_name("place"),
            container="",
        )
        self.fill = tf.raw_ops.Assign(
            ref=self.content, value=tensor, validate_shape=False, use_locking=False
        ).op


def _writer(plan: SavePlan, copies: Sequence[Sequence[Any]], prefix: Any) -> Any:
    """Return the operation that writes the files of a plan as its saver would."""
    count = len(plan.saves)
    if count == 1 and not plan.is_merged:
        return _save(plan.saves[0], copies[0], prefix)
    # The names that TensorFlow's sharded savers use.
    parts = [
        tf.strings.join([prefix, f"_temp/part-{number:05d}-of-{count:05d}"])
        for number in range(count)
    ]
    saves = [
        _save(save, values, part)
        for save, values, part in zip(plan.saves, copies, parts, strict=True)
    ]
    with tf1.control_dependencies(saves):
        return tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=prefix, delete_old_dirs=True
        )


def _save(save: SaveOp, values: Sequence[Any], prefix: Any) -> Any:
    return tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(save.names),
        shape_and_slices=list(save.slices),
        tensors=list(values),
    )
