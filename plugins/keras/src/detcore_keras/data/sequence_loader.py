"""Prepare the items of a Sequence in the calling thread, in threads or in processes.

This module imports only NumPy and the standard library, which keeps the worker processes small.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from detcore.errors import DataError
from detcore_keras.data.item_processes import (
    CannotSendError,
    ItemProcesses,
    format_error,
    make_item_error,
)
from detcore_keras.data.item_seeds import draws_numbers, end_epoch, find_generators, seeded_item

_logger = logging.getLogger("detcore.keras")


class SequenceLoader:
    """Prepares the items of a Sequence ahead of training and yields them in order.

    If processes or the calling thread prepare items, all generators are seeded for each item from
    seed, epoch and index. These are Python's and NumPy's generators, and generators in the
    Sequence's attributes. Items then do not depend on the number of workers, on timing, or on a
    restart. Threads share the generators with all other code of the process, so randomness in
    threads depends on timing.

    Only one thread at a time may use a loader. The owner must close it.

    Args:
        sequence: An object with ``__len__``, ``__getitem__`` and perhaps ``on_epoch_end``; each
            item is one batch.
        workers: Number of threads or processes; 0 for the calling thread.
        use_multiprocessing: Whether workers are processes. If the Sequence cannot be sent to
            another process, threads are used instead, with a warning.
        max_queue_size: Number of items that may be ready or in preparation ahead; >= 1.
        seed: Seed of the items' randomness.

    Attributes:
        epochs_ended: Number of calls of `end_epoch`.
    """

    def __init__(
        self,
        sequence: Any,
        *,
        workers: int,
        use_multiprocessing: bool,
        max_queue_size: int,
        seed: int,
    ) -> None:
        self._sequence = sequence
        self._workers = workers
        self._use_multiprocessing = use_multiprocessing
        self._max_queue_size = max_queue_size
        self._seed = seed
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._processes: ItemProcesses | None = None
        self.epochs_ended = 0
        self._first_generators = [generator.get_state() for generator in find_generators(sequence)]
        self._first_numbers = self._list_numbers()

    def read_items(self, indices: Iterable[int]) -> Generator[Any, None, None]:
        """Yield the items of the current epoch at some indices, in that order.

        The first call starts the workers. Closing the iterator drops the remaining items.

        Raises:
            DataError: If an item cannot be prepared (the message contains the user's traceback and
                the index), or if a worker process ended.
        """
        numbers = map(int, indices)
        if self._workers == 0:
            yield from map(self._prepare_item, numbers)
            return
        if self._threads is None:
            self._threads = self._start_workers()
        pending: deque[concurrent.futures.Future[Any]] = deque()
        try:
            while True:
                for index in itertools.islice(numbers, self._max_queue_size - len(pending)):
                    pending.append(self._threads.submit(self._prepare_item, index))
                if not pending:
                    return
                yield pending.popleft().result()
        finally:
            running = [future for future in pending if not future.cancel()]
            if self._processes is None:  # threads read the Sequence, which may change after this
                concurrent.futures.wait(running)

    def read_item(self, index: int) -> Any:
        """Return an item of the first epoch, prepared in the calling thread."""
        with seeded_item(self._sequence, self._seed, 0, index):
            return self._sequence[index]

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values for `load_state`."""
        return {
            "epochs_ended": self.epochs_ended,
            "first_generators": self._first_generators,
            "generators": [generator.get_state() for generator in find_generators(self._sequence)],
            "numbers": {
                name: number
                for name, number in self._list_numbers().items()
                if number != self._first_numbers.get(name)
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the Sequence's generators and end the epochs that had ended, without workers.

        Raises:
            DataError: If the Sequence holds other generators.
        """
        self._set_generators(state["first_generators"])
        while self.epochs_ended < state["epochs_ended"]:
            self.end_epoch()
        self._set_generators(state["generators"])  # ``on_epoch_end`` may have replaced them
        vars(self._sequence).update(state["numbers"])

    def _list_numbers(self) -> dict[str, int | float]:
        """Return the attributes that the calling thread may change, such as a count of batches."""
        attributes = getattr(self._sequence, "__dict__", {}) if self._workers == 0 else {}
        return {name: value for name, value in attributes.items() if type(value) in (int, float)}

    def _set_generators(self, states: Sequence[Any]) -> None:
        generators = find_generators(self._sequence)
        try:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the checkpoint has the states of {len(states)} random generator(s) of "
                f"{type(self._sequence).__name__}, which do not match the {len(generators)} "
                f"generator(s) in its attributes: {error}.\n"
                "Create the same generators as when the checkpoint was saved."
            ) from error

    def end_epoch(self) -> None:
        """Call the Sequence's ``on_epoch_end``, here and in the worker processes.

        Generators are seeded from seed and epoch for the call, and restored afterwards. A resumed
        run that repeats these calls therefore reaches the same state of the Sequence. Close the
        epoch's iterator first.
        """
        end_epoch(self._sequence, self._seed, self.epochs_ended)
        self.epochs_ended += 1

    def close(self) -> None:
        """End the workers and release memory; idempotent."""
        if self._processes is not None:
            self._processes.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()
        self._threads = self._processes = None

    def _start_workers(self) -> concurrent.futures.ThreadPoolExecutor:
        """Return threads that prepare items. With processes, each thread drives one process."""
        name = type(self._sequence).__name__
        if self._use_multiprocessing:
            try:
                self._processes = ItemProcesses(
                    self._sequence,
                    workers=self._workers,
                    seed=self._seed,
                    epochs_ended=self.epochs_ended,
                )
            except CannotSendError as error:
                _logger.warning(
                    "use_multiprocessing=True: %s\nThreads prepare the items of %s instead. They "
                    "share Python's interpreter lock, and their random numbers depend on timing.\n"
                    "Give the Sequence only attributes that can be pickled (no lambdas, open files "
                    "or tensors), or set use_multiprocessing=False.",
                    error,
                    name,
                )
        if self._processes is None and (
            find_generators(self._sequence) or draws_numbers(self._sequence)
        ):
            _logger.warning(
                "%s draws from random generators, and several threads prepare its items. "
                "The numbers depend on timing, and a resumed run draws other numbers.\n"
                "Set workers=0 or use_multiprocessing=True.",
                name,
            )
        return concurrent.futures.ThreadPoolExecutor(self._workers, "detcore-loader")

    def _prepare_item(self, index: int) -> Any:
        if self._processes is not None:
            return self._processes.prepare_item(index, self.epochs_ended)
        seeded = seeded_item(self._sequence, self._seed, self.epochs_ended, index)
        try:
            with contextlib.nullcontext() if self._workers else seeded:
                return self._sequence[index]
        except Exception as error:
            place = f"{type(self._sequence).__name__}[{index}]"
            raise make_item_error(place, format_error(error)) from error
