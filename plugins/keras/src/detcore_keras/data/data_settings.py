"""Define the settings with which a trial's data is fed."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from detcore.errors import DataError, InvalidDataTypeError, InvalidExperimentError, describe

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Settings for feeding data; see `TFKerasTrialContext.configure_fit`.

    The other attributes are for scripts that call `detcore_keras.fit`.

    Attributes:
        follows_keras: Whether metrics are running results since the start of the epoch, as in
            Keras, and validation data may be missing.
        first_epoch: Number of the first epoch.
        validation_batch_size: Records per validation step; None for the batch size.
        validation_freq: Epochs between two validations whose metrics callbacks receive.
    """

    verbose: bool = True
    class_weight: Mapping[int, float] | None = None
    # A second thread would share NumPy's generator with the training thread. The numbers that a
    # Sequence draws would then depend on timing, so threads must be requested explicitly.
    workers: int = 0
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    shuffle: bool = True
    validation_steps: int | None = None
    follows_keras: bool = False
    first_epoch: int = 0
    validation_batch_size: int | None = None
    validation_freq: int = 1


def check_fit_option(name: str, value: object) -> None:
    """Raise an ``InvalidExperimentError`` if an option of ``configure_fit`` has a wrong value."""
    if name in {"verbose", "use_multiprocessing", "shuffle"}:
        valid, expected = isinstance(value, bool | int), "True or False"
    elif name == "class_weight":
        valid = value is None or _is_class_weight(value)
        expected = "a dict from class index to a number, or None"
    elif name == "workers":
        valid, expected = _is_count(value, 0), "an integer >= 0"
    elif name == "max_queue_size":
        valid, expected = _is_count(value, 1), "an integer >= 1"
    else:
        valid, expected = value is None or _is_count(value, 1), "an integer >= 1, or None"
    if not valid:
        raise InvalidExperimentError(
            f"context.configure_fit received {name}={describe(value)}; expected {expected}."
        )


def _is_count(value: object, least: int) -> bool:
    return (
        isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
    )


def _is_class_weight(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(_is_count(label, 0) for label in cast("Mapping[object, object]", value))
        and all(isinstance(factor, numbers.Real) for factor in value.values())
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """How training and validation data are read.

    Attributes:
        batch_size: Records per batch and worker, for arrays.
        options: Settings of ``configure_fit``.
        wrapped: The datasets that ``wrap_dataset`` returned.
        seed: The trial's seed.
        distributed: The workers.
    """

    batch_size: int
    options: FitOptions
    wrapped: Sequence[Any]
    seed: int
    distributed: DistributedContext


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
                f"SequenceAdapter received {type(sequence).__name__}, which has no length or "
                "cannot be read by index.\n"
                "Pass a keras.utils.Sequence (PyDataset)."
            )
        if len(sequence) == 0:
            raise DataError(
                f"SequenceAdapter received an empty {type(sequence).__name__}: its length is 0.\n"
                "Training needs at least one batch."
            )
        if workers < 0 or max_queue_size < 1:
            raise InvalidExperimentError(
                f"SequenceAdapter received workers={workers}, max_queue_size={max_queue_size}.\n"
                "workers must be >= 0 and max_queue_size >= 1."
            )
        self.sequence = sequence
        self.workers = workers
        self.use_multiprocessing = bool(use_multiprocessing)
        self.max_queue_size = max_queue_size

    def __len__(self) -> int:
        """Return the number of batches in one epoch."""
        return len(self.sequence)
