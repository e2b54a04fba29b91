"""Define a ``tf.data`` iterator for v1 graphs that can be started, saved and restored exactly."""

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
    """A dataset that is created once per session, and can have several iterators.

    An iterator's own initializer creates the dataset each time, so every epoch would have the order
    of the first epoch. This class keeps the dataset in a variable.

    Args:
        dataset: The dataset, of the default graph.
        name: Name of the variable. It becomes unique in the graph.

    Attributes:
        session: The session of the last `make` call.
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
        """Create the dataset for a session, as if it had never been read."""
        self.session = session
        session.run(self._make)

    def destroy(self) -> None:
        """Release the dataset. Release its iterators first.

        If the session is closed first, it warns about the random generators of the shuffles.
        """
        self.session.run(self._destroy)

    def view(self) -> Any:
        """Return the kept dataset as a dataset of the graph."""
        return tf.data.experimental.from_variant(self.value, self.spec)

    def iterator(self) -> Any:
        """Return a new iterator for the dataset, which has not started."""
        types, shapes, classes = self._classes
        return tf1.data.Iterator.from_structure(types, shapes, None, classes)


class GraphIterator:
    """An iterator over a held dataset. Each `begin` recreates it at the start of an epoch.

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
        (saved_state,) = tf.raw_ops.RestoreV2(
            prefix=self._prefix,
            tensor_names=[_TENSOR_NAME],
            shape_and_slices=[""],
            dtypes=[tf.variant],
        )
        self._restore = tf.raw_ops.DeserializeIterator(
            resource_handle=self._resource, serialized=saved_state
        )
        self._destroy = tf.raw_ops.DestroyResourceOp(
            resource=self._resource, ignore_lookup_error=True
        )

    def begin(self) -> None:
        """Begin an epoch. The dataset's shuffles draw their next seeds."""
        self._holder.session.run(self._make)

    def clear(self) -> None:
        """Release buffers and threads."""
        self._holder.session.run(self._empty)

    def destroy(self) -> None:
        """Release the iterator. No other method may be called afterwards."""
        self._holder.session.run(self._destroy)

    def save(self, prefix: Path) -> None:
        """Write the state to files with this prefix."""
        self._holder.session.run(self._save, {self._prefix: str(prefix)})

    def restore(self, prefix: Path) -> None:
        """Restore the state that `save` wrote. Call `begin` first."""
        self._holder.session.run(self._restore, {self._prefix: str(prefix)})

    def read(self, limit: float = math.inf) -> int:
        """Read and drop batches, up to a limit or to the end. Return their number."""
        has_next = self._holder.session.make_callable(self._has_next)
        count = 0
        while count < limit and has_next():
            count += 1
        return count

    def skip(self, count: int) -> None:
        """Read and drop batches.

        Raises:
            DataError: If the data has fewer batches.
        """
        num_read = self.read(count)
        if num_read < count:
            raise DataError(
                f"the training data ended after {num_read} batches, but the checkpoint's data "
                f"position is after {count} batches.\n"
                "Training can only continue with the same data.\n"
                "Restore the data, or start a new experiment."
            )


def count_shuffles(prefix: Path) -> int:
    """Return the number of shuffles in a saved state.

    The state omits exhausted parts and everything they read from. It then lacks the number of
    starts of shuffles among them.

    Args:
        prefix: The prefix passed to `GraphIterator.save`.
    """
    shuffle_paths: set[bytes] = set()
    for path in prefix.parent.glob(f"{prefix.name}.data-*"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            shuffle_paths |= {match[1] for match in _SHUFFLE_STATE.finditer(text)}
    return len(shuffle_paths)
