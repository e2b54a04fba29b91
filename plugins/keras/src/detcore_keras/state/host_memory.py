"""Copy training state in the host's memory, at the speed of memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore_keras.frameworks import tf

# Arrays by file and key.
ArrayFiles: TypeAlias = Mapping[str, Mapping[str, npt.NDArray[Any]]]

_ALIGNMENT = 64


def host_array(variable: Any) -> npt.NDArray[Any]:
    """Return the value of a variable, without a copy where TensorFlow allows that.

    For a variable in the host's memory it is usually that memory itself, read-only. As long as the
    array exists, TensorFlow allocates new memory for the variable's next update, which costs more
    than a copy made here would: drop the array, and everything made from it, before training
    continues.

    Args:
        variable: A TensorFlow variable on any device.

    Returns:
        Its value; strings as Python's bytes in an array of objects.
    """
    value = variable.value()
    dtype = np.dtype(value.dtype.as_numpy_dtype)
    if dtype.kind == "O":
        return np.asarray(value.numpy())
    if "CPU" not in value.device:
        with tf.device("CPU:0"):
            value = tf.identity(value)
    if dtype.isbuiltin == 1:
        return np.asarray(memoryview(value))
    carrier = {1: tf.uint8, 2: tf.uint16}.get(dtype.itemsize)
    if carrier is None or not value.dtype.is_floating:
        return np.asarray(value.numpy())
    return np.asarray(memoryview(tf.bitcast(value, carrier))).view(dtype)


class HostMemory:
    """Memory for copies, kept from one snapshot to the next.

    Allocating memory costs up to ten times as much as filling it, since the kernel provides it page
    by page. The process therefore keeps a block of the state's size from the first snapshot on.
    """

    def __init__(self) -> None:
        self._kept: npt.NDArray[np.uint8] | None = None

    def copy(self, files: ArrayFiles) -> tuple[ArrayFiles, Callable[[], None]]:
        """Copy arrays.

        May be called while earlier copies are still in use; it allocates new memory then.

        Args:
            files: Arrays of NumPy's own types, in any memory layout.

        Returns:
            The copies, and a function that keeps their memory for the next ones. Call it once, on
            any thread; the copies are then invalid.
        """
        sources = {(f, key): array for f, arrays in files.items() for key, array in arrays.items()}
        sizes = [-(-source.nbytes // _ALIGNMENT) * _ALIGNMENT for source in sources.values()]
        block, self._kept = self._kept, None
        if block is None or block.nbytes < sum(sizes):
            block = np.empty(sum(sizes), np.uint8)
        copies: dict[str, dict[str, npt.NDArray[Any]]] = {file: {} for file in files}
        start = 0
        for ((file, key), source), size in zip(sources.items(), sizes, strict=True):
            target = block[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
            np.copyto(target, source)
            copies[file][key] = target
            start += size
        return copies, functools.partial(setattr, self, "_kept", block)
