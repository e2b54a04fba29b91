"""MNIST as input functions, for both trials of this folder."""

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
# What a shuffle holds is part of each checkpoint: this many pictures are 8 MB.
SHUFFLE_RECORDS = 10_000


def make_input_fn(
    context: EstimatorTrialContext, part: str, *, shuffle: bool = False
) -> Callable[[], tf.data.Dataset]:
    """Return an input function of batches ``({"image": images}, labels)``.

    Images are ``(record, 28, 28, 1), float32 in [0, 1]``, labels ``(record,), int32``.

    Args:
        context: The trial's context.
        part: ``"train"`` or ``"t10k"``.
        shuffle: Whether each epoch has an order of its own.
    """

    def input_fn() -> tf.data.Dataset:
        images, labels = check_files(part, context.get_data_config())
        records = tf.data.Dataset.zip((read(images), read(labels)))
        records = context.wrap_dataset(records)
        if shuffle:
            records = records.shuffle(SHUFFLE_RECORDS)
        return records.batch(context.get_per_slot_batch_size()).map(decode).prefetch(2)

    return input_fn


def check_files(part: str, data: Mapping[str, Any]) -> tuple[IdxFile, IdxFile]:
    """Return the files of images and labels.

    Args:
        part: ``"train"`` or ``"t10k"``.
        data: The section ``data`` of the experiment file.

    Raises:
        DataError: If they are missing, damaged, or do not belong together.
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
            f"image of {SIZE} x {SIZE} pixels.\nThe files do not belong together."
        )
    return images, labels


def read(file: IdxFile) -> tf.data.Dataset:
    """Return the records of a file as strings of bytes."""
    return tf.data.FixedLengthRecordDataset(
        str(file.path),
        record_bytes=file.record_bytes,
        header_bytes=file.header_bytes,
        compression_type=file.compression,
    )


def decode(images: tf.Tensor, labels: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Return a batch of records as numbers."""
    pixels = tf.reshape(tf.io.decode_raw(images, tf.uint8), [-1, SIZE, SIZE, 1])
    classes = tf.reshape(tf.io.decode_raw(labels, tf.uint8), [-1])
    return {"image": tf.cast(pixels, tf.float32) / 255}, tf.cast(classes, tf.int32)
