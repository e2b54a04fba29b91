"""Define `SequenceAdapter`: a Sequence with settings for preparing its items."""

from __future__ import annotations

from typing import Any

from detcore.errors import DataError, InvalidDataTypeError, InvalidExperimentError


class SequenceAdapter:
    """A ``keras.utils.Sequence`` whose items are prepared by background workers.

    Examples::

        SequenceAdapter(sequence, workers=0, use_multiprocessing=False)  # in the training thread
        SequenceAdapter(sequence, workers=1, use_multiprocessing=True)   # one background process
        SequenceAdapter(sequence, workers=2, use_multiprocessing=False)  # two background threads

    These settings take precedence over ``context.configure_fit``.

    Attributes:
        sequence: The Sequence.
        workers: Number of threads or processes; 0 for none.
        use_multiprocessing: Whether workers are processes instead of threads.
        max_queue_size: Number of items that may be ready ahead of training.
    """

    def __init__(
        self,
        sequence: Any,
        use_multiprocessing: bool = False,
        workers: int = 1,
        max_queue_size: int = 10,
    ) -> None:
        """Check and keep the arguments.

        Args:
            sequence: The Sequence (``PyDataset``): an object with ``__len__``, ``__getitem__`` and
                perhaps ``on_epoch_end``. Each item is one batch.
            use_multiprocessing: Whether workers are processes; default: threads.
            workers: Number of workers; >= 0.
            max_queue_size: Number of items ready ahead; >= 1.

        Raises:
            InvalidDataTypeError: If `sequence` cannot be read by index.
            DataError: If it is empty.
            InvalidExperimentError: If a number is out of range.
        """
        if not (hasattr(sequence, "__len__") and hasattr(sequence, "__getitem__")):
            raise InvalidDataTypeError(
                f"SequenceAdapter was given {type(sequence).__name__}, which has no length or "
                "cannot be read by index.\n"
                "It takes a keras.utils.Sequence (PyDataset)."
            )
        if len(sequence) == 0:
            raise DataError(
                f"SequenceAdapter was given an empty {type(sequence).__name__}: its length is 0.\n"
                "Training needs at least one batch."
            )
        if workers < 0 or max_queue_size < 1:
            raise InvalidExperimentError(
                f"SequenceAdapter was given workers={workers}, max_queue_size={max_queue_size}.\n"
                "workers must be >= 0 and max_queue_size >= 1."
            )
        self.sequence = sequence
        self.workers = workers
        self.use_multiprocessing = bool(use_multiprocessing)
        self.max_queue_size = max_queue_size

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        return len(self.sequence)
