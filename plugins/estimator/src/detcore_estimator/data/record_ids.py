"""Count the records of a batch, and hash them, for the data ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.trial import preserve_random_state
from detcore_estimator.data.graph_iterator import DatasetHolder, GraphIterator
from detcore_estimator.tensorflow_versions import tf


class Census:
    """Reads a dataset once, separately from training.

    Args:
        holder: A separate dataset, so that reading it does not change the training's seeds.
    """

    def __init__(self, holder: DatasetHolder) -> None:
        self._holder = holder
        self._iterator = GraphIterator(holder)
        self._ids = content_hashes(self._iterator.element)

    def read(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the hashes of each batch, ``(batch,), int64``.

        Python's and NumPy's random numbers are restored afterwards.
        """
        with preserve_random_state():
            session = self._holder.session
            self._holder.make(session)
            self._iterator.begin()
            read = session.make_callable(self._ids)
            while True:
                try:
                    ids = read()
                except tf.errors.OutOfRangeError:
                    break
                yield ids
            self._iterator.clear()

    def close(self) -> None:
        """Release the iterator, but not the dataset."""
        self._iterator.destroy()


def flat_tensors(batch: Any) -> list[Any]:
    """Return the dense tensors in a batch. Parts that are None are left out."""
    return [part for part in tf.nest.flatten(batch, expand_composites=True) if part is not None]


def content_hashes(batch: Any) -> Any:
    """Return a 64-bit hash of each record, ``(batch,), int64``; None without dense tensors."""
    tensors = [part for part in tf.nest.flatten(batch) if isinstance(part, tf.Tensor)]
    parts = [part for part in tensors if part.shape.rank != 0]
    if not parts:
        return None
    hashes = tf.concat([tf.fingerprint(part) for part in parts], axis=1)
    return tf.bitcast(tf.fingerprint(hashes), tf.int64)


def count_records(batch: Any) -> Any:
    """Return the number of records in a batch, ``(), int64``: the length of its first part.

    Args:
        batch: A structure of dense, sparse or ragged tensors. A batch of scalars counts as one
            record.
    """
    for part in tf.nest.flatten(batch):
        if isinstance(part, tf.RaggedTensor):
            return part.nrows(out_type=tf.int64)
        if isinstance(part, tf.SparseTensor):
            return part.dense_shape[0]
        if isinstance(part, tf.Tensor) and part.shape.rank != 0:
            return tf.shape(part, out_type=tf.int64)[0]
    return tf.constant(1, tf.int64)
