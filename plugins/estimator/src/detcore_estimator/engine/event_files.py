"""Write event files for TensorBoard."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

# Kinds of NumPy types: boolean, integers, floating-point.
_REAL = "biuf"


class EventFile:
    """An event file in a directory, created on the first write.

    Call its methods with a default graph, because TensorFlow rejects them in eager mode.

    Args:
        folder: The directory, created if missing.
        graph: A graph to write first, or None.
    """

    def __init__(self, folder: str, graph: Any = None) -> None:
        self._folder = folder
        self._graph = graph
        self._writer: Any = None

    def write_summary(self, step: int, summary: Any) -> None:
        """Write a summary of a step.

        Args:
            step: The global step.
            summary: ``tf.compat.v1.Summary``, or a serialized summary.
        """
        self._open_writer().add_summary(summary, step)

    def write_session_log(self, step: int, **fields: Any) -> None:
        """Write an event of the session, such as its start or a checkpoint."""
        self._open_writer().add_session_log(tf1.SessionLog(**fields), step)

    def flush(self) -> None:
        """Pass all written data to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the file, if it exists."""
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self) -> Any:
        if self._writer is None:
            # TensorFlow names the file after the second. Two writers in one second need different
            # files.
            suffix = f".{os.getpid()}.{uuid.uuid4().hex[:8]}"
            self._writer = tf1.summary.FileWriter(
                self._folder, graph=self._graph, filename_suffix=suffix
            )
        return self._writer


def result_summary(results: Mapping[str, Any]) -> Any:
    """Return a summary of the results of an evaluation.

    Args:
        results: Values by name: numbers, arrays, or serialized summaries. Other values are logged
            and left out.
    """
    summary = tf1.Summary()
    for name, value in results.items():
        if isinstance(value, bytes):
            _add_serialized(summary, name, value)
        elif np.ndim(value) == 0 and np.asarray(value).dtype.kind in _REAL:
            summary.value.add(tag=name, simple_value=float(value))
        elif isinstance(value, np.ndarray) and value.dtype.kind in _REAL:
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
        else:
            _logger.info(
                "the metric %r is neither a number nor an array, so it is not in the event file",
                name,
            )
    return summary


def _add_serialized(summary: Any, name: str, value: bytes) -> None:
    try:
        parsed = tf1.Summary.FromString(value)
    except Exception as error:  # noqa: BLE001  (protobuf's error class differs between its versions)
        _logger.info("the metric %r is a string, so it is not in the event file: %s", name, error)
        return
    for index, part in enumerate(parsed.value):
        part.tag = f"{name}/{index}"
        summary.value.append(part)
