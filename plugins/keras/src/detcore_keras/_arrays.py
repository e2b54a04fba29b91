"""Variables' values as npz files: bit for bit, and without pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError
from detcore_keras._keras import tf

__all__ = ["decoded", "encoded", "read_arrays", "write_arrays"]

_LENGTHS = ".lengths"


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of any type that a variable can have.

    Args:
        path: File to write; replaced if it exists.
        arrays: By key.
    """
    plain: dict[str, npt.NDArray[Any]] = {}
    for key, array in arrays.items():
        plain.update(encoded(key, array))
    savez: Callable[..., None] = np.savez  # its stubs differ between versions of NumPy
    with path.open("wb") as file:
        savez(file, **plain)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read what `write_arrays` wrote, as it is in the file; `decoded` gives the values.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged, or holds Python objects.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {path.name} (looked in {path.parent}).\n"
            "It is incomplete, or was not written by detcore-keras."
        ) from error
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} cannot be read: {error}.\n"
            "The file is damaged, or is no array file.\n"
            "Restore another checkpoint, or download this one again."
        ) from error


def encoded(key: str, array: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of NumPy's own types that hold the same bits.

    Strings become their bytes and lengths; types that NumPy does not know (bfloat16, float8)
    unsigned integers of their size.
    """
    if array.dtype.kind in "OSU":
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.reshape(-1)]
        lengths = np.array([len(text) for text in texts], np.int64)
        return {
            key: np.frombuffer(b"".join(texts), np.uint8),
            key + _LENGTHS: lengths.reshape(array.shape),
        }
    if array.dtype.kind == "V" or array.dtype.isbuiltin != 1:
        return {key: np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").copy()}
    return {key: array}


def decoded(arrays: Mapping[str, npt.NDArray[Any]], key: str, dtype: str) -> npt.NDArray[Any]:
    """Return the values that were written under a key.

    Args:
        arrays: What `read_arrays` returned.
        key: The key.
        dtype: TensorFlow's name of the type, such as ``"bfloat16"``.

    Raises:
        InvalidCheckpointError: If the key is missing.
    """
    if key not in arrays:
        raise InvalidCheckpointError(
            f"the checkpoint's arrays have no entry {key!r}: its variables.json belongs to "
            "another checkpoint, or a file was replaced"
        )
    array = arrays[key]
    if dtype == "string":
        return _texts(array.tobytes(), arrays[key + _LENGTHS])
    wanted: Any = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    return array if array.dtype == wanted else array.view(wanted)


def _texts(joined: bytes, lengths: npt.NDArray[Any]) -> npt.NDArray[Any]:
    texts = np.empty(lengths.size, object)
    ends = np.cumsum(lengths.reshape(-1))
    for index, (end, length) in enumerate(zip(ends, lengths.reshape(-1), strict=True)):
        texts[index] = joined[end - length : end]
    return texts.reshape(lengths.shape)
