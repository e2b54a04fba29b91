"""Reads gzip-compressed IDX files of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from detcore.errors import DataError

__all__ = ["IMAGES_MAGIC", "LABELS_MAGIC", "read_images", "read_labels"]

# Two zero bytes, 8 = unsigned bytes, and the number of axes.
IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801

_WHERE = (
    "Download the four files from https://github.com/zalandoresearch/fashion-mnist (data/fashion) "
    "and put them, compressed, into the directory that data.dir in the experiment file names."
)


def read_images(path: Path, *, md5: str | None = None) -> np.ndarray:
    """Return images, ``(record, row, column), uint8``.

    Args:
        path: An ``...-images-idx3-ubyte.gz`` file.
        md5: MD5 sum of the compressed file in hexadecimal digits. None: not checked.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    return _read_array(path, IMAGES_MAGIC, "images", md5)


def read_labels(path: Path, *, num_classes: int, md5: str | None = None) -> np.ndarray:
    """Return labels, ``(record,), uint8``, each ``0 <= label < num_classes``.

    Args:
        path: An ``...-labels-idx1-ubyte.gz`` file.
        num_classes: Number of classes.
        md5: As in `read_images`.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    labels = _read_array(path, LABELS_MAGIC, "labels", md5)
    if labels.size and int(labels.max()) >= num_classes:
        index = int(np.argmax(labels >= num_classes))
        raise DataError(
            f"{path}: label {index} is {labels[index]}, but there are {num_classes} classes, 0 to "
            f"{num_classes - 1}.\nThe file is damaged or belongs to another data set.\n{_WHERE}"
        )
    return labels


def _read_array(path: Path, magic: int, kind: str, md5: str | None) -> np.ndarray:
    try:
        compressed = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"the file {path} does not exist.\n{_WHERE}") from error
    digest = hashlib.md5(compressed, usedforsecurity=False).hexdigest()
    if md5 is not None and digest != md5.lower():
        raise DataError(
            f"{path} has the MD5 sum {digest}, but data.md5 in the experiment file is {md5}.\n"
            f"The download is incomplete, or the file belongs to another data set.\n{_WHERE}"
        )
    try:
        content = gzip.decompress(compressed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be decompressed: {error}.\n"
            f"The published files are gzip files.\n{_WHERE}"
        ) from error
    return _parse_array(path, content, magic, kind)


def _parse_array(path: Path, content: bytes, magic: int, kind: str) -> np.ndarray:
    num_axes = magic & 0xFF
    header_bytes = 4 + 4 * num_axes
    number = int.from_bytes(content[:4], "big")
    if len(content) < header_bytes or number != magic:
        kinds = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}
        meaning = f" ({kinds[number]})" if number in kinds else ""
        raise DataError(
            f"{path} has the magic number {number}{meaning}; expected {magic} ({kind}).\n"
            f"Images and labels may be swapped, or it is not an IDX file of bytes.\n{_WHERE}"
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header_bytes])
    expected = header_bytes + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, but its header {shape} requires {expected} bytes.\n"
            f"The file is truncated, or data was added.\n{_WHERE}"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)
