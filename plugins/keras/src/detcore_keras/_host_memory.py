"""Copy training state in the host's memory, at the speed of memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore_keras._keras import tf

# Arrays by file and key.
ArrayFiles: TypeAlias = Mapping[str, Mapping[str, npt.NDArray[Any]]]

_ALIGNMENT = 64
_PIECE_BYTES = 8 << 20
_MAX_THREADS = 4
_WORTH_A_THREAD_BYTES = 32 << 20
# For data that is not counted beforehand: strings, callbacks' counters.
_SPARE_BYTES = 1 << 20


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
    by page. The process therefore keeps a block of the state's size from `prepare`, or the first
    snapshot, on.
    """

    def __init__(self) -> None:
        self._kept: npt.NDArray[np.uint8] | None = None
        self._preparing: threading.Thread | None = None

    def prepare(self, sizes: Iterable[int]) -> None:
        """Start allocating memory on another thread, ready for the first snapshot.

        Args:
            sizes: Sizes of the arrays that will be copied, in bytes; more memory is allocated if
                they turn out to be larger.
        """
        size_bytes = sum(map(_aligned, sizes)) + _SPARE_BYTES
        if self._kept is None and self._preparing is None and size_bytes >= _WORTH_A_THREAD_BYTES:
            self._preparing = threading.Thread(
                target=self._take_and_touch, args=(size_bytes,), name="detcore-memory", daemon=True
            )
            self._preparing.start()

    def _take_and_touch(self, size_bytes: int) -> None:
        block = np.empty(size_bytes, np.uint8)
        block.fill(0)
        self._kept = block

    def copy(self, files: ArrayFiles) -> HostCopies:
        """Copy arrays; `HostCopies.release` returns the memory for the next time.

        May be called while earlier copies are still in use; it allocates new memory then.

        Args:
            files: Arrays of NumPy's own types, in any memory layout.
        """
        sources = {
            (file, key): np.asarray(array, order="C")
            for file, arrays in files.items()
            for key, array in arrays.items()
        }
        starts: list[int] = []
        end = 0
        for source in sources.values():
            starts.append(end)
            end += _aligned(source.nbytes)
        block = self._take(end)
        copies: dict[str, dict[str, npt.NDArray[Any]]] = {file: {} for file in files}
        pieces = []
        for ((file, key), source), start in zip(sources.items(), starts, strict=True):
            target = block[start : start + source.nbytes]
            copies[file][key] = target.view(source.dtype).reshape(source.shape)
            pieces += _pieces(target, source.reshape(-1).view(np.uint8))
        _copy_all(pieces, end)
        return HostCopies(copies, self, block)

    def _take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        block, self._kept = self._kept, None
        if block is None or not size_bytes <= block.nbytes <= 2 * size_bytes + _PIECE_BYTES:
            block = np.empty(size_bytes, np.uint8)
        return block

    def _give_back(self, block: npt.NDArray[np.uint8]) -> None:
        self._kept = block


class HostCopies:
    """Arrays that `HostMemory.copy` made.

    Attributes:
        files: The copies, by file and key; invalid after `release`.
    """

    def __init__(self, files: ArrayFiles, memory: HostMemory, block: npt.NDArray[np.uint8]) -> None:
        self.files: ArrayFiles = files
        self._memory = memory
        self._block: npt.NDArray[np.uint8] | None = block

    def release(self) -> None:
        """Return the memory; from any thread. Idempotent."""
        block, self._block, self.files = self._block, None, {}
        if block is not None:
            self._memory._give_back(block)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


_Piece: TypeAlias = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


def _pieces(target: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> list[_Piece]:
    return [
        (target[start : start + _PIECE_BYTES], source[start : start + _PIECE_BYTES])
        for start in range(0, len(source), _PIECE_BYTES)
    ]


def _copy_all(pieces: list[_Piece], size_bytes: int) -> None:
    threads = min(_MAX_THREADS, os.cpu_count() or 1, size_bytes // _WORTH_A_THREAD_BYTES)
    if threads < 2:
        for target, source in pieces:
            np.copyto(target, source)
        return
    with ThreadPoolExecutor(threads, "detcore-copy") as pool:
        for done in [pool.submit(np.copyto, target, source) for target, source in pieces]:
            done.result()
