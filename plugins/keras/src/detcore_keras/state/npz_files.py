"""Write array files (``.npz``) as a stream, and read untrusted array files safely.

A checkpoint may come from another person, and ``numpy.load`` trusts the sizes declared in a file.
This module compares every declared size with the size of the file before it allocates memory, and
never unpickles.
"""

from __future__ import annotations

import math
import re
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidCheckpointError

# Small enough for Linux to have the pages available. Large enough that the interpreter's lock,
# which is released while a piece is written, is seldom needed.
_PIECE_BYTES = 1 << 20
_SUFFIX = ".npy"
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Booleans, integers, floats and complex numbers, but not objects, strings, dates or structures.
_KINDS = frozenset("biufc")
_ENCRYPTED = 0x1
_NPY_MAGIC = b"\x93NUMPY"


class _RefusedError(ValueError):
    """Raised when a file contains anything that `write_npz` does not write."""


def write_npz(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays to a file that ``numpy.load`` reads. The same arrays give the same bytes.

    Needs a few MB of memory in addition to the arrays, and rarely holds the interpreter's lock.

    Args:
        path: File to write; replaced if it exists.
        arrays: Arrays by key, of types that NumPy knows. Arrays in Fortran order are copied.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(key + _SUFFIX), "w", force_zip64=True) as member:
                array = np.asarray(array, order="C")
                header: Any = np.lib.format.header_data_from_array_1_0(array)
                np.lib.format.write_array_header_1_0(member, header)
                content = bytes_of(array)
                for start in range(0, len(content), _PIECE_BYTES):
                    member.write(content[start : start + _PIECE_BYTES])


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a file of `write_npz`.

    Uses no more memory than the size of the file. Nothing in the file is executed or unpickled.

    Args:
        path: The file.

    Returns:
        The arrays, by key.

    Raises:
        FileNotFoundError: If the file does not exist.
        InvalidCheckpointError: If the file is damaged, or contains data that `write_npz` does not
            write.
    """
    status = path.stat()
    try:
        if not stat.S_ISREG(status.st_mode):
            raise _RefusedError("it is a directory, a pipe or a device, not a file")
        with zipfile.ZipFile(path) as archive:
            members = _check_members(archive, status.st_size)
            return {key: _read_array(archive, member) for key, member in members.items()}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        ValueError,
    ) as error:
        is_explained = isinstance(error, _RefusedError)
        reason = error if is_explained else f"it is damaged, or not an array file ({error})"
        raise InvalidCheckpointError(
            f"{path} cannot be read: {reason}.\nNo data from it was used.\n"
            "Restore another checkpoint, or download this one again."
        ) from error


def _check_members(archive: zipfile.ZipFile, size_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by key. Reject the file if its table of contents is invalid."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        key = member.filename.removesuffix(_SUFFIX)
        if key == member.filename or not _KEY.fullmatch(key) or ".." in key:
            raise _RefusedError(
                f"its member {member.filename!r} does not have the name of an array"
            )
        if key in members:
            raise _RefusedError(f"it has two members {member.filename!r}")
        if member.flag_bits & _ENCRYPTED:
            raise _RefusedError(f"its member {member.filename!r} is encrypted")
        if member.compress_type != zipfile.ZIP_STORED:
            raise _RefusedError(
                f"its member {member.filename!r} is compressed. A small compressed file could "
                "require any amount of memory, so detcore-keras does not write or read them",
            )
        if member.file_size != member.compress_size:
            raise _RefusedError(
                f"its member {member.filename!r} declares {member.file_size} bytes, stored as "
                f"{member.compress_size}",
            )
        members[key] = member
    claimed = sum(member.file_size for member in members.values())
    if claimed > size_bytes:
        raise _RefusedError(f"its members declare {claimed} bytes, but the file has {size_bytes}")
    return members


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(member) as source:
        shape, dtype = _read_header(member, source)
        _check_type(member, dtype)
        size_bytes = math.prod(shape) * dtype.itemsize
        available_bytes = member.file_size - source.tell()
        if size_bytes != available_bytes:
            raise _RefusedError(
                f"its member {member.filename!r} declares {dtype} {shape}, which is {size_bytes} "
                f"bytes, but has {available_bytes}",
            )
        source.seek(0)
        array: npt.NDArray[Any] = np.lib.format.read_array(source, allow_pickle=False)
        if source.read(1):  # the checksum is compared only at the end of the member
            raise EOFError("bytes are left over")
    return array


def _read_header(
    member: zipfile.ZipInfo, source: IO[bytes]
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    start = source.read(len(_NPY_MAGIC))
    if start != _NPY_MAGIC:
        raise _RefusedError(
            f"its member {member.filename!r} is not an array: it begins with {start!r}. Pickles "
            "are never loaded, because they can run code",
        )
    source.seek(0)
    try:
        version = np.lib.format.read_magic(source)
        read: Any = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(source)
    # Python's parser raises some of these for malicious headers.
    except (
        ValueError,
        TypeError,
        KeyError,
        SyntaxError,
        tokenize.TokenError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        raise _RefusedError(
            f"the header of its member {member.filename!r} cannot be used ({error!r:.200})"
        ) from error
    if any(type(size) is not int or size < 0 for size in shape):
        raise _RefusedError(f"its member {member.filename!r} declares the shape {shape}")
    return shape, dtype


def _check_type(member: zipfile.ZipInfo, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise _RefusedError(
            f"its member {member.filename!r} holds Python objects as a pickle. Pickles are never "
            "loaded, because they can run code",
        )
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise _RefusedError(
            f"its member {member.filename!r} holds {dtype}, which is not a numeric type"
        )
    if not dtype.isnative:
        raise _RefusedError(
            f"its member {member.filename!r} holds {dtype.str}, in a foreign byte order"
        )


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the memory of an array in C order, as bytes."""
    content: Any = array.reshape(-1).view(np.uint8)
    return memoryview(content)
