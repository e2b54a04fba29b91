"""Write and read the files of a checkpoint: JSON, and arrays bit for bit, without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError
from detcore_keras.state.npz_files import read_npz

_LENGTHS = ".lengths"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path, consequence: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: File in a checkpoint.
        consequence: End of the message if the checkpoint has no such file.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it does not hold a JSON object")
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {path.name} (looked in {path.parent}){consequence}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    return value


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read an array file of a checkpoint. Pass its arrays to `decode_array`.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged, or contains anything but arrays
            of numbers of the declared sizes.
    """
    try:
        return read_npz(path)
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {path.name} (looked in {path.parent}).\n"
            "It is incomplete, or was not written by detcore-keras."
        ) from error


def encode_array(key: str, array: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of NumPy's own types with the same bits, without copying if possible.

    Strings become bytes and lengths. Types that NumPy does not know (bfloat16, float8) become
    unsigned integers of the same size.
    """
    if array.dtype.kind in "OSU":
        texts = [t if isinstance(t, bytes) else str(t).encode() for t in array.reshape(-1)]
        lengths = np.array([len(text) for text in texts], np.int64)
        return {
            key: np.frombuffer(b"".join(texts), np.uint8),
            key + _LENGTHS: lengths.reshape(array.shape),
        }
    if _is_foreign(array.dtype):
        return {key: np.asarray(array, order="C").view(f"u{array.dtype.itemsize}")}
    return {key: array}


def decode_array(arrays: Mapping[str, npt.NDArray[Any]], key: str, dtype: str) -> npt.NDArray[Any]:
    """Return the values that were stored under a key.

    Args:
        arrays: Result of `read_arrays`.
        key: The key.
        dtype: Keras's name of the type, such as ``"bfloat16"``.

    Raises:
        InvalidCheckpointError: If the key is missing, or holds values of another type.
    """
    array = _get_entry(arrays, key)
    if dtype == "string":
        return _decode_strings(array, _get_entry(arrays, key + _LENGTHS), key)
    numpy_type = _numpy_type(dtype)
    if array.dtype == numpy_type:
        return array
    if _is_foreign(numpy_type) and array.dtype == np.dtype(f"u{numpy_type.itemsize}"):
        return array.view(numpy_type)
    raise InvalidCheckpointError(
        f"the checkpoint's entry {key!r} holds {array.dtype}, but is declared as {dtype}. The "
        "files were not written together"
    )


def _get_entry(arrays: Mapping[str, npt.NDArray[Any]], key: str) -> npt.NDArray[Any]:
    if key not in arrays:
        raise InvalidCheckpointError(
            f"the checkpoint's arrays have no entry {key!r}. Its variables.json belongs to another "
            "checkpoint, or a file was replaced"
        )
    return arrays[key]


def _numpy_type(dtype: str) -> np.dtype[Any]:
    extension = getattr(ml_dtypes, dtype, None)
    if isinstance(extension, type) and issubclass(extension, np.generic):
        return np.dtype(extension)
    try:
        numpy_type: np.dtype[Any] = np.dtype(dtype)
        if numpy_type.name != dtype or numpy_type.kind not in "biufc":
            raise ValueError("it is not the name of a numeric type")
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidCheckpointError(
            f"the checkpoint has the type {dtype!r}, which NumPy does not have"
        ) from error
    return numpy_type


def _is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether a type is not one of NumPy's own."""
    return dtype.kind == "V" or dtype.isbuiltin != 1


def _decode_strings(
    joined: npt.NDArray[Any], lengths: npt.NDArray[Any], key: str
) -> npt.NDArray[Any]:
    size_bytes = joined.nbytes
    fits = lengths.dtype == np.int64 and bool(np.all((lengths >= 0) & (lengths <= size_bytes)))
    if not fits or sum(lengths.reshape(-1).tolist()) != size_bytes:
        raise InvalidCheckpointError(
            f"the checkpoint's entry {key!r} holds {size_bytes} bytes of strings, which do not "
            "match their lengths. The files were not written together"
        )
    content = joined.tobytes()
    texts = np.empty(lengths.size, object)
    ends = np.cumsum(lengths.reshape(-1))
    for index, (end, length) in enumerate(zip(ends, lengths.reshape(-1), strict=True)):
        texts[index] = content[end - length : end]
    return texts.reshape(lengths.shape)
