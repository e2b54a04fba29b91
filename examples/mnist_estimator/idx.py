"""Checks the IDX files of MNIST and returns their layout for TensorFlow.

An IDX file consists of a big-endian header and records of one size with one byte per number.
TensorFlow reads the records directly from the file, compressed or not. The images therefore become
neither a constant in the graph, which every checkpoint contains, nor an array in memory.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

from detcore.errors import DataError

__all__ = ["IMAGES_MAGIC", "LABELS_MAGIC", "IdxFile", "find_file", "open_images", "open_labels"]

# Two zero bytes, 8 = unsigned bytes, and the number of axes.
IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801

_GZIP = b"\x1f\x8b"
_WHERE = (
    "Download the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ (a mirror of "
    "http://yann.lecun.com/exdb/mnist/) and put them, compressed or not, into the directory that "
    "data.dir in the experiment file names."
)


@dataclasses.dataclass(frozen=True)
class IdxFile:
    """An IDX file with valid header and size.

    Attributes:
        path: Path of the file.
        shape: ``(record, row, column)`` for images, ``(record,)`` for labels.
        header_bytes: Bytes before the first record.
        compression: ``"GZIP"`` or ``""``, as in ``tf.data.FixedLengthRecordDataset``.
    """

    path: Path
    shape: tuple[int, ...]
    header_bytes: int
    compression: str

    @property
    def num_records(self) -> int:
        """Number of images or labels."""
        return self.shape[0]

    @property
    def record_bytes(self) -> int:
        """Size of an image or label in bytes."""
        return math.prod(self.shape[1:])


def find_file(folder: Path, name: str) -> Path:
    """Return the path of an IDX file, compressed (``name.gz``) or decompressed.

    Args:
        folder: Directory of the files.
        name: Name of the file, such as ``"train-images-idx3-ubyte"``.

    Raises:
        DataError: If neither file exists.
    """
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(f"no file {name}.gz or {name} in {folder}.\n{_WHERE}")


def open_images(path: Path, *, md5: str | None = None) -> IdxFile:
    """Check an image file.

    Args:
        path: An ``...-images-idx3-ubyte`` file, with or without ``.gz``.
        md5: MD5 sum of the file in hexadecimal digits. None: not checked.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    file, _ = _open_file(path, IMAGES_MAGIC, "images", md5)
    return file


def open_labels(path: Path, *, num_classes: int, md5: str | None = None) -> IdxFile:
    """Check a label file, with ``0 <= label < num_classes``.

    Args:
        path: An ``...-labels-idx1-ubyte`` file, with or without ``.gz``.
        num_classes: Number of classes.
        md5: As in `open_images`.

    Raises:
        DataError: If the file is missing, damaged or of another kind.
    """
    file, content = _open_file(path, LABELS_MAGIC, "labels", md5)
    labels = content[file.header_bytes :]
    if labels and max(labels) >= num_classes:
        index = next(index for index, label in enumerate(labels) if label >= num_classes)
        raise DataError(
            f"{path}: label {index} is {labels[index]}, but there are {num_classes} classes, 0 to "
            f"{num_classes - 1}.\nThe file is damaged or belongs to another data set.\n{_WHERE}"
        )
    return file


def _open_file(path: Path, magic: int, kind: str, md5: str | None) -> tuple[IdxFile, bytes]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"the file {path} does not exist.\n{_WHERE}") from error
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 is not None and digest != md5.lower():
        raise DataError(
            f"{path} has the MD5 sum {digest}, but data.md5 in the experiment file is {md5}.\n"
            f"The download is incomplete, or the file belongs to another data set.\n{_WHERE}"
        )
    compression = "GZIP" if content.startswith(_GZIP) else ""
    if compression:
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be decompressed: {error}.\n{_WHERE}") from error
    shape, header_bytes = _parse_header(path, content, magic, kind)
    return IdxFile(path, shape, header_bytes, compression), content


def _parse_header(path: Path, content: bytes, magic: int, kind: str) -> tuple[tuple[int, ...], int]:
    """Return the shape in the header, and the header's size in bytes."""
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
    if not shape[0]:
        raise DataError(f"{path} contains no {kind}; its header is {shape}.\n{_WHERE}")
    return shape, header_bytes
