"""Write the user's summaries to event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detcore_estimator._tf import tf1


class SummaryWriter:
    """Writes serialized summaries and the graph; the file is made with the first of them.

    Args:
        directory: Folder of the event file.
        graph: The training graph, written with the first summary.
    """

    def __init__(self, directory: Path, graph: Any) -> None:
        self._directory = directory
        self._graph = graph
        self._writer: Any = None

    def add(self, step: int, summary: bytes) -> None:
        """Write one serialized ``Summary``.

        Args:
            step: The global step.
            summary: Result of ``tf.compat.v1.summary.merge_all``.
        """
        if self._writer is None:
            with self._graph.as_default():
                # The trial's own event file may have been made in the same second.
                self._writer = tf1.summary.FileWriter(
                    str(self._directory), graph=self._graph, filename_suffix=".summaries"
                )
        self._writer.add_summary(summary, step)

    def flush(self) -> None:
        """Pass all written data to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
