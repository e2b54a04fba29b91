"""Input functions for MNIST, shared by both trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from idx import IdxFile, find_file, open_images, open_labels

from detcore.errors import DataError
from detcore_estimator import EstimatorTrialContext

__all__ = ["NUM_CLASSES", "SIZE", "make_input_fn"]

NUM_CLASSES = 10
SIZE = 28
# Each checkpoint contains the shuffle buffer, which has 8 MB with this number of images.
SHUFFLE_RECORDS = 10_000


def make_input_fn(
    context: EstimatorTrialContext, part: str, *, shuffle: bool = False
) -> Callable[[], tf.data.Dataset]:
    """Return an input function for batches ``({"image": images}, labels)``.

    Images are ``(record, 28, 28, 1), float32 in [0, 1]``, labels ``(record,), int32``.

    Args:
        context: The trial's context.
        part: ``"train"`` or ``"t10k"``.
        shuffle: Whether each epoch has a different order.
    """

    def input_fn() -> tf.data.Dataset:
        images, labels = check_files(part, context.get_data_config())
        records = tf.data.Dataset.zip((read_records(images), read_records(labels)))
        records = context.wrap_dataset(records)
        if shuffle:
            records = records.shuffle(SHUFFLE_RECORDS)
        return records.batch(context.get_per_slot_batch_size()).map(decode_batch).prefetch(2)

    return input_fn


def check_files(part: str, data: Mapping[str, Any]) -> tuple[IdxFile, IdxFile]:
    """Check and return the image file and the label file.

    Args:
        part: ``"train"`` or ``"t10k"``.
        data: Section ``data`` of the experiment file.

    Raises:
        DataError: If the files are missing, damaged or do not match.
    """
    folder = Path(data["dir"]).expanduser()
    sums = data.get("md5") or {}
    images_path = find_file(folder, f"{part}-images-idx3-ubyte")
    labels_path = find_file(folder, f"{part}-labels-idx1-ubyte")
    images = open_images(images_path, md5=sums.get(images_path.name))
    labels = open_labels(labels_path, num_classes=NUM_CLASSES, md5=sums.get(labels_path.name))
    if images.shape[1:] != (SIZE, SIZE) or images.num_records != labels.num_records:
        raise DataError(
            f"{folder}: {images_path.name} has images of shape {images.shape} and "
            f"{labels_path.name} has {labels.num_records} labels; MNIST has one label for each "
            f"image of {SIZE} x {SIZE} pixels.\nThe files do not match."
        )
    return images, labels


def read_records(file: IdxFile) -> tf.data.Dataset:
    """Return the records of a file as byte strings."""
    return tf.data.FixedLengthRecordDataset(
        str(file.path),
        record_bytes=file.record_bytes,
        header_bytes=file.header_bytes,
        compression_type=file.compression,
    )


def decode_batch(images: tf.Tensor, labels: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Decode a batch of byte strings into numbers."""
    pixels = tf.reshape(tf.io.decode_raw(images, tf.uint8), [-1, SIZE, SIZE, 1])
    classes = tf.reshape(tf.io.decode_raw(labels, tf.uint8), [-1])
    return {"image": tf.cast(pixels, tf.float32) / 255}, tf.cast(classes, tf.int32)
