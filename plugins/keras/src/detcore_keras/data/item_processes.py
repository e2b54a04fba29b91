"""Processes that prepare the items of a Sequence.

Forking the training process would copy TensorFlow's locks, which its threads may hold. A new server
process has no such threads. It imports the user's module once. The workers that it forks share its
copy of the Sequence's data until they write to it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, NoReturn

import numpy as np

from detcore.errors import DataError
from detcore_keras.data.item_seeds import end_epoch, seeded_item

_logger = logging.getLogger("detcore.keras")

_SLOW_ITEM_S = 60.0
_REPORT_TIMEOUT_S = 30.0
# The server gets this process's module search path.
_SERVER = """\
import json, sys
sys.path[:], *arguments = json.loads(sys.argv[1])
from detcore_keras.data.item_processes import serve_items
serve_items(*arguments)
"""


class CannotSendError(DataError):
    """Raised when a Sequence cannot be sent to another process."""


class _Worker(NamedTuple):
    pid: int
    connection: Any
    memory: io.FileIO


class ItemProcesses:
    """Worker processes of a Sequence.

    Several threads may call `prepare_item`, each of which then waits for one worker. The arrays of
    an item travel in memory that the worker shares with this process, everything else in a pickle.

    Args:
        sequence: The Sequence. It is pickled as in `multiprocessing`, and sent to the server
            process once.
        workers: Number of processes; >= 1.
        seed: Seed of each item's randomness.
        epochs_ended: Number of calls of ``on_epoch_end`` on this object so far.

    Raises:
        CannotSendError: If the Sequence cannot be sent.
        DataError: If the server process ended.
    """

    def __init__(self, sequence: Any, *, workers: int, seed: int, epochs_ended: int) -> None:
        self._name = type(sequence).__name__
        payload = _pack_sequence(sequence)
        pairs = [multiprocessing.Pipe() for _ in range(workers)]
        self._connections = [parent_end for parent_end, _ in pairs]
        self._memories = [_open_shared_memory() for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._failure: str | None = None
        self._lifeline, lifeline = multiprocessing.Pipe()
        self._lifeline_lock = threading.Lock()
        child_ends = [lifeline, *(child_end for _, child_end in pairs)]
        descriptors = [end.fileno() for end in child_ends]
        descriptors += [memory.fileno() for memory in self._memories]
        self._server = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _SERVER,
                json.dumps([sys.path, seed, epochs_ended, descriptors]),
            ],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that `kill` reaches the workers
        )
        for end in child_ends:
            end.close()
        try:
            self._wait_until_ready(payload)
        except BaseException:
            self.kill()
            self.close()
            raise

    def prepare_item(self, index: int, epoch: int) -> Any:
        """Return an item.

        Args:
            index: Index of the item in the Sequence.
            epoch: Pass over the data; ``on_epoch_end`` is called for all earlier ones.

        Raises:
            DataError: If the item cannot be prepared, or if any worker has ended.
        """
        worker = self._idle.get()
        try:
            item, error = self._request_item(worker, index, epoch)
        finally:
            self._idle.put(worker)
        if error is not None:
            raise make_item_error(f"{self._name}[{index}]", error, worker.pid)
        return item

    def kill(self) -> None:
        """Kill all processes. Threads in `prepare_item` get an error."""
        if self._server.returncode is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def close(self) -> None:
        """Release the memory. Call it when no thread is in `prepare_item`."""
        for connection in (self._lifeline, *self._connections):
            connection.close()
        for memory in self._memories:
            memory.close()

    def _wait_until_ready(self, payload: Any) -> None:
        try:
            self._connections[0].send_bytes(payload)
            for connection, memory in zip(self._connections, self._memories, strict=True):
                pid = self._receive_message(connection, f"the workers of {self._name} are starting")
                if isinstance(pid, str):
                    raise CannotSendError(
                        f"{self._name} could not be unpickled in another process:\n{pid.rstrip()}"
                    )
                self._idle.put(_Worker(pid, connection, memory))
        except (EOFError, ConnectionError) as error:
            raise DataError(
                f"the process that starts the loader's workers ended: "
                f"{_describe_code(self._server.wait())}.\n"
                "Resume the experiment; its latest checkpoint is not affected."
            ) from error

    def _request_item(self, worker: _Worker, index: int, epoch: int) -> tuple[Any, str | None]:
        if self._failure is not None:
            raise DataError(self._failure)
        try:
            worker.connection.send((index, epoch))
            answer, sizes = self._receive_message(
                worker.connection, f"item {index} of {self._name} is in preparation"
            )
        except (EOFError, ConnectionError) as error:
            self._failure = (
                f"worker process {worker.pid} of {self._name} ended at item {index}: "
                f"{self._describe_end()}.\n"
                "The item is lost, so training cannot continue exactly.\n"
                "Resume the experiment. If memory is short, use fewer workers or a smaller "
                "max_queue_size."
            )
            raise DataError(self._failure) from error
        buffers = [np.empty(size, np.uint8) for size in sizes]
        worker.memory.seek(0)
        for buffer in buffers:
            view = memoryview(buffer.data)
            while view:  # one call reads 2 GiB at most
                view = view[worker.memory.readinto(view) :]
        item_and_error: tuple[Any, str | None] = pickle.loads(answer, buffers=buffers)  # noqa: S301  (ours)
        return item_and_error

    def _receive_message(self, connection: Any, doing: str) -> Any:
        while not connection.poll(_SLOW_ITEM_S):
            _logger.warning("%s for more than %.0f s", doing, _SLOW_ITEM_S)
        return connection.recv()

    def _describe_end(self) -> str:
        """Return how a worker ended, as the server reports it."""
        try:
            # Several workers may end together, and each has a thread here.
            with self._lifeline_lock:
                if self._lifeline.poll(_REPORT_TIMEOUT_S):
                    return _describe_code(self._lifeline.recv())
        except (EOFError, ConnectionError):
            return "its server process has also ended"
        return f"its server process did not report how within {_REPORT_TIMEOUT_S:.0f} s"


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    number = -code
    if number == signal.SIGKILL:
        return "killed by SIGKILL (the kernel does so when memory runs out)"
    is_known = number in {member.value for member in signal.Signals}
    return f"killed by {signal.Signals(number).name if is_known else f'signal {number}'}"


def make_item_error(place: str, text: str, pid: int | None = None) -> DataError:
    """Return the error for an item whose preparation raised an exception.

    Args:
        place: The item, such as ``"Images[3]"``.
        text: Result of `format_error`.
        pid: The worker process, if there is one.
    """
    where = "" if pid is None else f" in worker process {pid}"
    return DataError(f"{place} failed{where}: {text.splitlines()[-1]}\n{text}")


def format_error(error: BaseException) -> str:
    """Return the traceback without the frames of the loader."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals["__name__"].startswith(_OWN_MODULES):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


_OWN_MODULES = "detcore_keras.data."


def _pack_sequence(sequence: Any) -> Any:
    name = f"{type(sequence).__module__}.{type(sequence).__qualname__}"
    if type(sequence).__module__ == "__main__":
        raise CannotSendError(
            f"{name} is defined in the script that runs, which another process cannot import.\n"
            "Move the class into a separate module."
        )
    try:
        return ForkingPickler.dumps(sequence)
    except Exception as error:
        raise CannotSendError(f"{name} cannot be pickled: {error}") from error


def _open_shared_memory() -> io.FileIO:
    """Return memory that processes share by inheriting its descriptor.

    It has no name, so it disappears with the last process that uses it, even after a SIGKILL. Named
    shared memory would remain.
    """
    if hasattr(os, "memfd_create"):
        return io.FileIO(os.memfd_create("detcore-loader"), "r+")
    with tempfile.TemporaryFile() as file:  # macOS has no memfd
        return io.FileIO(os.dup(file.fileno()), "r+")


def serve_items(seed: int, epochs_ended: int, descriptors: list[int]) -> None:
    """Receive the Sequence, fork the workers, and report how each of them ends.

    Args:
        seed: Seed of each item's randomness.
        epochs_ended: Number of calls of ``on_epoch_end`` before the Sequence was sent.
        descriptors: File descriptors of a connection that closes when the parent ends, then of each
            worker's connection (the first one receives the Sequence), then of each worker's memory.
    """
    # These signals request a checkpoint from the parent, which may still need items for it. A
    # scheduler sends them to all processes of a job. The workers end with the parent, and the
    # server with them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Preparing data must not use the memory of a GPU that trains.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    workers = len(descriptors) // 2
    opened: list[Connection] = [Connection(number) for number in descriptors[: 1 + workers]]
    lifeline, *connections = opened
    try:
        sequence = connections[0].recv()
    except BaseException:  # noqa: BLE001  (the user's module is imported here: sent to the parent)
        connections[0].send(traceback.format_exc())
        raise SystemExit(1) from None
    for connection, memory in zip(connections, descriptors[1 + workers :], strict=True):
        if not _fork_worker():
            _exit_with_parent(lifeline)
            for other in connections:
                if other is not connection:
                    other.close()
            _run_worker(sequence, seed, epochs_ended, connection, memory)
    for connection in connections:
        connection.close()
    for _ in connections:
        _, status = os.wait()
        with contextlib.suppress(BrokenPipeError):
            lifeline.send(os.waitstatus_to_exitcode(status))
    os._exit(0)  # tearing down the user's imports can take a second


def _fork_worker() -> int:
    with warnings.catch_warnings():
        # Python 3.12 and later warn about threads. The threads here are idle BLAS thread pools.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _exit_with_parent(lifeline: Connection) -> None:
    """End this process when the parent ends, even in the middle of an item."""

    def wait() -> None:
        os.read(lifeline.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run_worker(
    sequence: Any, seed: int, epochs_ended: int, connection: Connection, descriptor: int
) -> NoReturn:
    """Prepare items until the parent ends."""
    code = 0
    try:
        memory = open(descriptor, "wb")  # noqa: SIM115  (open as long as the process lives)
        connection.send(os.getpid())
        while True:
            index, epoch = connection.recv()
            buffers: list[pickle.PickleBuffer] = []
            try:
                while epochs_ended < epoch:
                    end_epoch(sequence, seed, epochs_ended)
                    epochs_ended += 1
                with seeded_item(sequence, seed, epoch, index):
                    item = sequence[index]
                answer = pickle.dumps((item, None), 5, buffer_callback=buffers.append)
            except BaseException as error:  # noqa: BLE001  (the user's: raised in the parent)
                buffers.clear()
                answer = pickle.dumps((None, format_error(error)))
            views = [buffer.raw() for buffer in buffers]
            memory.seek(0)
            memory.writelines(views)
            memory.flush()
            sys.stdout.flush()
            connection.send((answer, [view.nbytes for view in views]))
    except (EOFError, ConnectionError):
        pass  # the parent has ended
    except BaseException:  # noqa: BLE001  (the end of the process: printed, shown by its exit code)
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)
