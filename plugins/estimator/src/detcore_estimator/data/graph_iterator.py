"""Define a ``tf.data`` iterator for v1 graphs that can be begun, saved and restored exactly."""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Any

from detcore.errors import DataError
from detcore_estimator.tensorflow_versions import tf, tf1

_FAIL_ON_EXTERNAL_STATE = 2
_TENSOR_NAME = "iterator"
# Parts of an iterator are named by their path.
_SHUFFLE_STATE = re.compile(rb"Iterator::Root([\w:\[\]]*)@@epoch_num_random_samples")


class DatasetHolder:
    """A dataset that is made once for a session, and from which iterators are made.

    An iterator's own initializer runs the operations that make the dataset each time, so every
    epoch would have the order of the first. Here the dataset is kept in a variable.

    Args:
        dataset: The dataset, of the graph that is the default one.
        name: Name of the variable; made unique in the graph.

    Attributes:
        session: The session for which it was made last.
    """

    session: Any

    def __init__(self, dataset: Any, name: str) -> None:
        self.spec = dataset.element_spec
        self._classes = (
            tf1.data.get_output_types(dataset),
            tf1.data.get_output_shapes(dataset),
            tf1.data.get_output_classes(dataset),
        )
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.variant,
            shape=[],
            shared_name=tf1.get_default_graph().unique_name(name),
        )
        variant = tf.data.experimental.to_variant(dataset)
        self._make = tf.raw_ops.AssignVariableOp(resource=handle, value=variant)
        self.value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.variant)
        self.num_batches = self.view().cardinality()
        self._destroy = tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)

    def make(self, session: Any) -> None:
        """Make the dataset for a session, as if it had never been read."""
        self.session = session
        session.run(self._make)

    def destroy(self) -> None:
        """Let go of the dataset, after the iterators over it.

        A session that is closed before warns of the random generators of its shuffles.
        """
        self.session.run(self._destroy)

    def view(self) -> Any:
        """Return the kept dataset as a dataset of the graph."""
        return tf.data.experimental.from_variant(self.value, self.spec)

    def iterator(self) -> Any:
        """Return a new iterator for such datasets, not begun."""
        types, shapes, classes = self._classes
        return tf1.data.Iterator.from_structure(types, shapes, None, classes)


class GraphIterator:
    """One iterator over a held dataset. Each `begin` recreates it, at the start of an epoch.

    Args:
        holder: The dataset.
    """

    def __init__(self, holder: DatasetHolder) -> None:
        self._holder = holder
        iterator = holder.iterator()
        self._resource = iterator._iterator_resource
        self._make = tf.raw_ops.MakeIterator(dataset=holder.value, iterator=self._resource)
        nothing = tf.data.experimental.to_variant(holder.view().take(0))
        self._empty = tf.raw_ops.MakeIterator(dataset=nothing, iterator=self._resource)
        self.element = iterator.get_next()
        self._has_next = iterator.get_next_as_optional().has_value()
        self._prefix = tf1.placeholder(tf.string, [], name="prefix")
        state = tf.raw_ops.SerializeIterator(
            resource_handle=self._resource, external_state_policy=_FAIL_ON_EXTERNAL_STATE
        )
        self._save = tf.raw_ops.SaveV2(
            prefix=self._prefix,
            tensor_names=[_TENSOR_NAME],
            shape_and_slices=[""],
            tensors=[state],
        )
        (saved,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix,
            tensor_names=[_TENSOR_NAME],
            shape_and_slices=[""],
            dtypes=[tf.variant],
        )
        self._restore = tf.raw_ops.DeserializeIterator(
            resource_handle=self._resource, serialized=saved
        )
        self._destroy = tf.raw_ops.DestroyResourceOp(
            resource=self._resource, ignore_lookup_error=True
        )

    def begin(self) -> None:
        """Begin an epoch. The dataset's shuffles draw their next seeds."""
        self._holder.session.run(self._make)

    def clear(self) -> None:
        """Let go of buffers and threads."""
        self._holder.session.run(self._empty)

    def destroy(self) -> None:
        """Let go of the iterator; nothing else may be called after it."""
        self._holder.session.run(self._destroy)

    def save(self, prefix: Path) -> None:
        """Write the state to files with this prefix."""
        self._holder.session.run(self._save, {self._prefix: str(prefix)})

    def restore(self, prefix: Path) -> None:
        """Take over the state that `save` wrote; begin it before."""
        self._holder.session.run(self._restore, {self._prefix: str(prefix)})

    def read(self, limit: float = math.inf) -> int:
        """Read batches and drop them, up to a limit or to the end; return how many."""
        has_next = self._holder.session.make_callable(self._has_next)
        count = 0
        while count < limit and has_next():
            count += 1
        return count

    def skip(self, count: int) -> None:
        """Read batches and drop them.

        Raises:
            DataError: If there are not so many.
        """
        done = self.read(count)
        if done < count:
            raise DataError(
                f"the training data ended after {done} batches, where the checkpoint's data "
                f"position says that it had {count}.\n"
                "Training can only continue with the same data.\n"
                "Restore the data, or start a new experiment."
            )


def count_shuffles(prefix: Path) -> int:
    """Return how many shuffles a saved state speaks of.

    A part that has nothing left to give is dropped with everything it reads from, and then the
    state does not say how often a shuffle among them was begun.

    Args:
        prefix: The prefix given to `GraphIterator.save`.
    """
    found: set[bytes] = set()
    for path in prefix.parent.glob(f"{prefix.name}.data-*"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found |= {match[1] for match in _SHUFFLE_STATE.finditer(text)}
    return len(found)
