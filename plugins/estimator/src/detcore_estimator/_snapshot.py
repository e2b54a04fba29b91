"""Copies of what savers save, made inside a session and written by another thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import ContextStateError
from detcore.types import TensorInfo
from detcore_estimator._saver_graph import SaveOp, SavePlan
from detcore_estimator._tf import tf, tf1

__all__ = ["Snapshot", "SnapshotOps", "can_be_copied"]

# The types that TensorFlow's DeepCopy takes.
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

    Args:
        graph: The graph, not finalized; the operations are added to it.
        plans: What is saved, under a name of the caller's; `can_be_copied` of each.
    """

    def __init__(self, graph: Any, plans: Mapping[str, SavePlan]) -> None:
        self._plans = dict(plans)
        self._saves = [(name, save) for name in plans for save in plans[name].saves]
        self._last: Snapshot | None = None
        self._next_key = 0
        if not plans:
            return
        with (
            graph.as_default(),
            tf1.name_scope("detcore_snapshot"),
            tf.device("/device:CPU:0"),
        ):
            self._key = tf1.placeholder(tf.int64, [], name="key")
            places = [_Place(save, self._key, graph) for _, save in self._saves]
            self._shapes = [
                [tf.shape(tensor, tf.int64) for tensor in save.tensors] for _, save in self._saves
            ]
            self._copy = tf.group(*(place.put for place in places))
            self._drop = tf.group(*(op for place in places for op in place.taken))
            self._prefixes = {name: tf1.placeholder(tf.string, [], name="prefix") for name in plans}
            self._write_now = self._writers([save.tensors for _, save in self._saves])
            # All copies are out before the first is written: one that cannot be written leaves
            # none of them behind.
            with tf1.control_dependencies([self._drop]):
                self._write = self._writers([place.taken for place in places])

    def _writers(self, values: Sequence[Sequence[Any]]) -> Any:
        """Return the operation that writes all files, given the values of each save."""
        found, first = [], 0
        for name, plan in self._plans.items():
            end = first + len(plan.saves)
            found.append(_writer(plan, values[first:end], self._prefixes[name]))
            first = end
        return tf.group(*found)

    def take(self, session: Any) -> Snapshot:
        """Copy all tensors as they are now; a copy that was never written is given up.

        Args:
            session: The session.
        """
        if self._last is not None:
            self._last.drop()
        self._next_key += 1
        snapshot = Snapshot(self, session, self._next_key)
        if self._plans:
            session.run(self._copy, {self._key: self._next_key})
        self._last = snapshot
        return snapshot

    def write_now(self, session: Any, prefixes: Mapping[str, str]) -> None:
        """Write the variables themselves, while nothing changes them.

        Args:
            session: The session.
            prefixes: For each plan the prefix of its files.
        """
        if self._plans:
            session.run(self._write_now, self._prefix_feeds(prefixes))

    def tensors(self, session: Any, files: Mapping[str, str]) -> list[TensorInfo]:
        """Return what is saved, with the shapes of now.

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

    def run_write(self, session: Any, key: int, prefixes: Mapping[str, str]) -> None:
        """Write the copies with a key, and forget them."""
        if not self._plans:
            return
        feeds = {self._key: key, **self._prefix_feeds(prefixes)}
        # On this thread: the session's own may be few, and training needs them.
        session.run(self._write, feeds, options=tf1.RunOptions(inter_op_thread_pool=-1))

    def run_drop(self, session: Any, key: int) -> None:
        """Forget the copies with a key."""
        if self._plans:
            session.run(self._drop, {self._key: key})

    def _prefix_feeds(self, prefixes: Mapping[str, str]) -> dict[Any, str]:
        return {placeholder: prefixes[name] for name, placeholder in self._prefixes.items()}


class Snapshot:
    """Copies that wait for being written, once; made by `SnapshotOps.take`."""

    def __init__(self, operations: SnapshotOps, session: Any, key: int) -> None:
        self._operations = operations
        self._session = session
        self._key = key
        self._state = _HELD
        self._lock = threading.Lock()

    def write(self, prefixes: Mapping[str, str]) -> None:
        """Write the files; from any thread, while the session is open.

        Args:
            prefixes: For each plan the prefix of its files.

        Raises:
            ContextStateError: If they were written or given up before.
        """
        if not self._becomes(_TAKEN):
            raise ContextStateError(
                "this copy of the variables is gone: it was written, or a later one was made.\n"
                "Write each snapshot once, before the next is taken."
            )
        self._operations.run_write(self._session, self._key, prefixes)

    def drop(self) -> None:
        """Forget the copies, unless they were written."""
        if self._becomes(_DROPPED):
            self._operations.run_drop(self._session, self._key)

    def _becomes(self, state: int) -> bool:
        with self._lock:
            was_held = self._state == _HELD
            if was_held:
                self._state = state
            return was_held


class _Place:
    """Where the copies of one save operation wait.

    Attributes:
        put: The operation that copies.
        taken: The copies; taking them empties the place.
    """

    def __init__(self, save: SaveOp, key: Any, graph: Any) -> None:
        types = [tensor.dtype.base_dtype for tensor in save.tensors]
        indices = list(range(len(types)))
        name = graph.unique_name("place")
        copies = [tf.raw_ops.DeepCopy(x=tensor) for tensor in save.tensors]
        self.put = tf.raw_ops.MapStage(
            key=key, indices=indices, values=copies, dtypes=types, shared_name=name
        )
        self.taken = tf.raw_ops.MapUnstage(key=key, indices=indices, dtypes=types, shared_name=name)


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
