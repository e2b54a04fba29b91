"""Checks the IDX files of MNIST, as published, and says how TensorFlow reads them.

An IDX file is a big-endian header followed by records of one size, one byte a number. TensorFlow
reads such records straight from the file, compressed or not, so the pictures become neither a
constant in the graph (which every checkpoint would hold) nor an array in memory.
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
    "The four files are at https://ossci-datasets.s3.amazonaws.com/mnist/ (a mirror of "
    "http://yann.lecun.com/exdb/mnist/); put them, compressed or not, into the folder that "
    "data.dir in the experiment file names."
)


@dataclasses.dataclass(frozen=True)
class IdxFile:
    """A file whose header and size are right.

    Attributes:
        path: Where it is.
        shape: Of the whole: ``(record, row, column)`` for images, ``(record,)`` for labels.
        header_bytes: Bytes before the first record.
        compression: ``"GZIP"`` or ``""``, as ``tf.data.FixedLengthRecordDataset`` calls it.
    """

    path: Path
    shape: tuple[int, ...]
    header_bytes: int
    compression: str

    @property
    def num_records(self) -> int:
        """How many images or labels there are."""
        return self.shape[0]

    @property
    def record_bytes(self) -> int:
        """Bytes of one image or label."""
        return math.prod(self.shape[1:])


def find_file(folder: Path, name: str) -> Path:
    """Return the path of an IDX file in a folder, as published (``name.gz``) or decompressed.

    Args:
        folder: The folder.
        name: Such as ``"train-images-idx3-ubyte"``.

    Raises:
        DataError: If there is neither.
    """
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(f"there is no file {name}.gz (or {name}) in {folder}.\n{_WHERE}")


def open_images(path: Path, *, md5: str | None = None) -> IdxFile:
    """Check a file of images.

    Args:
        path: An ``...-images-idx3-ubyte`` file, with or without ``.gz``.
        md5: Checksum of the file, as hexadecimal digits; None = not checked.

    Raises:
        DataError: If the file is missing, damaged, or of another kind.
    """
    file, _ = _open(path, IMAGES_MAGIC, "images", md5)
    return file


def open_labels(path: Path, *, num_classes: int, md5: str | None = None) -> IdxFile:
    """Check a file of labels, each ``0 <= label < num_classes``.

    Args:
        path: An ``...-labels-idx1-ubyte`` file, with or without ``.gz``.
        num_classes: How many classes there are.
        md5: As for `open_images`.

    Raises:
        DataError: If the file is missing, damaged, or of another kind.
    """
    file, content = _open(path, LABELS_MAGIC, "labels", md5)
    labels = content[file.header_bytes :]
    if labels and max(labels) >= num_classes:
        index = next(index for index, label in enumerate(labels) if label >= num_classes)
        raise DataError(
            f"{path}: label {index} is {labels[index]}, but there are {num_classes} classes, 0 to "
            f"{num_classes - 1}.\nThe file is of another data set, or damaged.\n{_WHERE}"
        )
    return file


def _open(path: Path, magic: int, kind: str, md5: str | None) -> tuple[IdxFile, bytes]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}.\n{_WHERE}") from error
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 is not None and found != md5.lower():
        raise DataError(
            f"{path} has the MD5 sum {found}, but data.md5 in the experiment file says {md5}.\n"
            f"The download was cut short, or the file is of another data set.\n{_WHERE}"
        )
    compression = "GZIP" if content.startswith(_GZIP) else ""
    if compression:
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be decompressed: {error}.\n{_WHERE}") from error
    shape, header_bytes = _parse(path, content, magic, kind)
    return IdxFile(path, shape, header_bytes, compression), content


def _parse(path: Path, content: bytes, magic: int, kind: str) -> tuple[tuple[int, ...], int]:
    """Return the shape that the header tells, and the header's length in bytes."""
    num_axes = magic & 0xFF
    header_bytes = 4 + 4 * num_axes
    found = int.from_bytes(content[:4], "big")
    if len(content) < header_bytes or found != magic:
        known = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}
        what = f", which is the number of {known[found]}" if found in known else ""
        raise DataError(
            f"{path} begins with the magic number {found}{what}; {kind} begin with {magic}.\n"
            f"Images and labels may be swapped, or this is no IDX file of bytes.\n{_WHERE}"
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header_bytes])
    expected = header_bytes + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} holds {len(content)} bytes, but its header says {shape}, which is {expected} "
            f"bytes.\nThe file was cut short, or something was added.\n{_WHERE}"
        )
    if not shape[0]:
        raise DataError(f"{path} holds no {kind}: its header says {shape}.\n{_WHERE}")
    return shape, header_bytes
