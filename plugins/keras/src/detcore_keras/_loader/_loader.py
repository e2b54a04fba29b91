"""Define `SequenceLoader`, the interface to items prepared in this thread, threads or processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from detcore.errors import DataError
from detcore_keras._loader._processes import CannotSendError, ProcessPool
from detcore_keras._loader._seeding import end_epoch, find_generators, seeded_item

_logger = logging.getLogger("detcore.keras")


class _Backend(Protocol):
    def batches(
        self, indices: Iterable[int], epoch: int, epochs_ended: int
    ) -> Generator[Any, None, None]: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class SequenceLoader:
    """Prepares the items of a Sequence ahead of training and yields them in order.

    If items are prepared by processes or in the calling thread, Python's and NumPy's generators and
    those in the Sequence's attributes are seeded for each of them from seed, epoch and index: items
    do not depend on the number of workers, on timing, or on a restart. Threads share the generators
    with everything else in the process, so there such randomness does depend on timing.

    One thread at a time may use a loader. It must be closed.

    Args:
        sequence: An object with ``__len__``, ``__getitem__`` and perhaps ``on_epoch_end``; each
            item is one batch.
        workers: Number of threads or processes; 0 for the calling thread.
        use_multiprocessing: Whether workers are processes. If the Sequence cannot be sent to
            another process, threads are used instead, with a warning.
        max_queue_size: Number of items that may be ready or in preparation ahead; >= 1. With
            processes at most 128.
        seed: Seed of the items' randomness.

    Attributes:
        epochs_ended: Number of calls of `end_epoch`.
    """

    def __init__(
        self,
        sequence: Any,
        *,
        workers: int = 1,
        use_multiprocessing: bool = False,
        max_queue_size: int = 10,
        seed: int = 0,
    ) -> None:
        if workers < 0 or max_queue_size < 1:
            raise DataError(
                f"a loader with workers={workers}, max_queue_size={max_queue_size} cannot work; "
                "the least is 0 and 1"
            )
        self._sequence = sequence
        self._workers = workers
        self._use_multiprocessing = use_multiprocessing
        self._max_queue_size = max_queue_size
        self._seed = seed
        self._backend: _Backend | None = None
        self._is_ready = False
        self.epochs_ended = 0
        self._first_generators = [each.get_state() for each in find_generators(sequence)]

    def __enter__(self) -> SequenceLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty for threads, and before the start."""
        return list(self._backend.pids) if isinstance(self._backend, ProcessPool) else []

    def start(self) -> None:
        """Start the workers, without waiting for them. `batches` calls it if necessary.

        Calling it early lets them import the user's code while the model is built.
        """
        if self._backend is None:
            self._backend = self._make_backend()

    def batches(
        self, indices: Iterable[int], epoch: int, *, copy: bool = False
    ) -> Generator[Any, None, None]:
        """Yield the items at some indices, in that order.

        With processes, arrays are views of shared memory: they are valid until `release` is called,
        and at most four batches may be unreleased. Closing the iterator drops the rest.

        Args:
            indices: Indices of the items.
            epoch: Their pass over the data, for their randomness.
            copy: Whether to yield copies, which need no `release`.

        Raises:
            DataError: If an item cannot be prepared: the message contains the user's traceback and
                the index. If a worker process ended. If no batch is released.
        """
        backend = self._ready_backend()
        items = backend.batches(indices, epoch, self.epochs_ended)
        return self._copied(items, backend) if copy else items

    def read_item(self, index: int) -> Any:
        """Return an item of the first epoch, prepared in the calling thread."""
        with seeded_item(self._sequence, self._seed, 0, index):
            return self._sequence[index]

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values for `load_state`."""
        return {
            "epochs_ended": self.epochs_ended,
            "first_generators": self._first_generators,
            "generators": [each.get_state() for each in find_generators(self._sequence)],
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

    def _set_generators(self, states: Sequence[Any]) -> None:
        generators = find_generators(self._sequence)
        try:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the checkpoint has the states of {len(states)} random generator(s) of "
                f"{type(self._sequence).__name__}, which do not fit the {len(generators)} in its "
                f"attributes now: {error}.\n"
                "Create the same generators as when the checkpoint was saved."
            ) from error

    def release(self) -> None:
        """Declare that no earlier batch is read any more: call it after each step."""
        if self._backend is not None:
            self._backend.release()

    def end_epoch(self) -> None:
        """Call the Sequence's ``on_epoch_end``, here and in the worker processes.

        Generators are seeded for it from seed and epoch, and restored afterwards, so a resumed run
        that repeats these calls finds the Sequence in the same state. Close the epoch's iterator
        first.
        """
        end_epoch(self._sequence, self._seed, self.epochs_ended)
        self.epochs_ended += 1

    def close(self) -> None:
        """End the workers and release memory; idempotent."""
        if self._backend is not None:
            self._backend.close()
        self._backend = None

    def _make_backend(self) -> _Backend:
        if self._workers == 0:
            return _Inline(self._sequence, self._seed)
        if self._use_multiprocessing:
            try:
                return ProcessPool(
                    self._sequence,
                    workers=self._workers,
                    max_queue_size=self._max_queue_size,
                    seed=self._seed,
                    epochs_ended=self.epochs_ended,
                )
            except CannotSendError as error:
                _warn_of_threads(self._sequence, error)
        return self._make_threads()

    def _make_threads(self) -> _Backend:
        if find_generators(self._sequence):
            _logger.warning(
                "%s draws from random generators in its attributes, and threads prepare its items: "
                "the numbers depend on timing, and a resumed run draws other numbers.\n"
                "Set workers=0 or use_multiprocessing=True.",
                type(self._sequence).__name__,
            )
        return _Threads(self._sequence, self._workers, self._max_queue_size)

    def _ready_backend(self) -> _Backend:
        self.start()
        backend = self._backend
        if isinstance(backend, ProcessPool) and not backend.pids:
            try:
                backend.wait_until_ready()
            except CannotSendError as error:
                backend.close()
                _warn_of_threads(self._sequence, error)
                backend = self._make_threads()
        assert backend is not None  # created by start()
        self._backend = backend
        return backend

    def _copied(
        self, items: Generator[Any, None, None], backend: _Backend
    ) -> Generator[Any, None, None]:
        if not isinstance(backend, ProcessPool):
            yield from items
            return
        with contextlib.closing(items):
            for item in items:
                own = _copy(item)
                backend.release()
                yield own


class _Inline:
    """Prepares items in the calling thread."""

    def __init__(self, sequence: Any, seed: int) -> None:
        self._sequence = sequence
        self._seed = seed

    def batches(
        self, indices: Iterable[int], epoch: int, epochs_ended: int
    ) -> Generator[Any, None, None]:
        for index in map(int, indices):
            try:
                with seeded_item(self._sequence, self._seed, epoch, index):
                    item = self._sequence[index]
            except Exception as error:
                raise _item_error(self._sequence, index, error) from error
            yield item

    def release(self) -> None:
        """Do nothing: no memory is shared."""

    def close(self) -> None:
        """Do nothing: no worker was started."""


class _Threads:
    """Prepares items in threads of this process."""

    def __init__(self, sequence: Any, workers: int, max_queue_size: int) -> None:
        self._sequence = sequence
        self._ahead = max_queue_size
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, "detcore-loader")

    def batches(
        self, indices: Iterable[int], epoch: int, epochs_ended: int
    ) -> Generator[Any, None, None]:
        tasks = iter(map(int, indices))
        pending: deque[tuple[int, concurrent.futures.Future[Any]]] = deque()
        try:
            while True:
                while len(pending) < self._ahead and (index := next(tasks, None)) is not None:
                    future = self._pool.submit(self._sequence.__getitem__, index)
                    pending.append((index, future))
                if not pending:
                    return
                index, future = pending.popleft()
                try:
                    item = future.result()
                except Exception as error:
                    raise _item_error(self._sequence, index, error) from error
                del future  # otherwise the item lives as long as this frame waits for the next one
                yield item
        finally:
            # Work that cannot be cancelled still reads the Sequence, which may change after this.
            concurrent.futures.wait([future for _, future in pending if not future.cancel()])

    def release(self) -> None:
        """Do nothing: no memory is shared."""

    def close(self) -> None:
        """Wait for running work, and end the threads."""
        self._pool.shutdown(cancel_futures=True)


def _copy(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_copy(item) for item in value)
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def _item_error(sequence: Any, index: int, error: Exception) -> DataError:
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return DataError(f"{type(sequence).__name__}[{index}] failed: {text.splitlines()[-1]}\n{text}")


def _is_ours(file_name: str) -> bool:
    return file_name.startswith((__file__, str(Path(concurrent.futures.__file__).parent)))


def _warn_of_threads(sequence: Any, error: CannotSendError) -> None:
    _logger.warning(
        "use_multiprocessing=True: %s\nThreads prepare the items of %s instead: they share one "
        "core's worth of Python, and randomness in them depends on timing.\nMake the Sequence of "
        "things that can be pickled (no lambdas, open files or tensors), or set "
        "use_multiprocessing=False.",
        str(error),
        type(sequence).__name__,
    )
