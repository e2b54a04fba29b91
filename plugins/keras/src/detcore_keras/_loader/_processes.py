"""Control the worker processes from the parent: issue tasks, collect batches, notice exits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from detcore.errors import DataError
from detcore_keras._loader._codec import (
    IDLE,
    Board,
    Decoder,
    Result,
    Slot,
    Startup,
    Task,
    make_shared_file,
)

_logger = logging.getLogger("detcore.keras")

# Batches that the consumer may hold without releasing them.
_MAX_HELD = 4
# Each item that may be ready ahead takes a descriptor in every process.
_MAX_AHEAD = 128
_SLOW_ITEM_S = 60.0
# The server has this process's module search path, whatever was done to sys.path.
_SERVER = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from detcore_keras._loader._server import main
main(sys.argv[2])
"""
_CLOSE_S = 5.0


class CannotSendError(DataError):
    """The Sequence cannot be sent to another process."""


@dataclasses.dataclass(slots=True)
class _Outstanding:
    task: Task
    is_wanted: bool = True
    result: Result | None = None


class ProcessPool:
    """Worker processes that prepare the items of a Sequence in shared memory.

    Arrays of a batch are views of a slot, which is reused after a call of `release`. One thread at
    a time may use a pool.

    Args:
        sequence: The Sequence. It is sent to the server process once, with pickle as
            `multiprocessing` does it; batches are sent without pickle.
        workers: Number of processes; >= 1.
        max_queue_size: Number of items that may be ready or in preparation ahead of the consumer;
            >= 1.
        seed: Seed of each item's randomness.
        epochs_ended: Number of calls of ``on_epoch_end`` on this object so far.

    Raises:
        CannotSendError: If the Sequence cannot be sent.
    """

    def __init__(
        self, sequence: Any, *, workers: int, max_queue_size: int, seed: int, epochs_ended: int
    ) -> None:
        self._name = type(sequence).__name__
        self._ahead = min(max_queue_size, _MAX_AHEAD)
        self._outstanding: dict[int, _Outstanding] = {}
        self._held: list[int] = []
        self._next_number = 0
        self._unread = b""
        self._notices: list[dict[str, Any]] = []
        self._notice_text = b""
        self._failure: str | None = None
        self._decoder = Decoder()
        self._poll = select.poll()
        self.pids: list[int] = []
        payload = _pack_sequence(sequence)
        with contextlib.ExitStack() as on_failure:
            self._open(workers, on_failure)
            self._start(payload, seed, epochs_ended)
            self._descriptors = on_failure.pop_all()

    def _open(self, workers: int, descriptors: contextlib.ExitStack) -> None:
        """Create everything that parent and workers share; `descriptors` closes it."""

        def keep(*numbers: int) -> tuple[int, ...]:
            for number in numbers:
                descriptors.callback(os.close, number)
            return numbers

        self._workers = workers
        (board,) = keep(make_shared_file(Board.size_bytes(workers)))
        self._board_descriptor = board
        self._board = Board(board, workers)
        for worker in range(workers):
            self._board.set_task(worker, IDLE)
        self._slots = [Slot(*keep(make_shared_file(0))) for _ in range(self._ahead + _MAX_HELD)]
        # Taken from the end, so that as few slots as possible are in use (and in the cache).
        self._free = list(reversed(range(len(self._slots))))
        self._results, self._their_results = keep(*os.pipe())
        self._their_tasks, self._tasks = keep(*os.pipe())
        self._their_leash, self._leash = keep(*os.pipe())
        # Only the server has the notices' writing end, so its exit is detected.
        self._notices_read, self._their_notices = os.pipe()
        os.set_blocking(self._notices_read, False)
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(self._notices_read, select.POLLIN)

    def _start(self, payload: Any, seed: int, epochs_ended: int) -> None:
        sequence_read, sequence_write = os.pipe()
        startup = Startup(
            workers=self._workers,
            seed=seed,
            epochs_ended=epochs_ended,
            sequence=sequence_read,
            tasks=self._their_tasks,
            results=self._their_results,
            leash=self._their_leash,
            notices=self._their_notices,
            board=self._board_descriptor,
            slots=[slot.descriptor for slot in self._slots],
        )
        command = [sys.executable, "-c", _SERVER, json.dumps(sys.path)]
        with contextlib.suppress(BrokenPipeError), Connection(sequence_write) as connection:
            try:
                self._server = subprocess.Popen(
                    [*command, json.dumps(dataclasses.asdict(startup))],
                    pass_fds=startup.descriptors(),
                    stdin=subprocess.DEVNULL,
                )
            finally:
                os.close(sequence_read)
                os.close(self._their_notices)
            # If the server ends before it has read everything, its notice or its exit says why.
            connection.send_bytes(payload)

    def wait_until_ready(self) -> None:
        """Wait until the workers run.

        Raises:
            CannotSendError: If the server process could not unpickle the Sequence.
            DataError: If the server process ended.
        """
        while not self.pids:
            self._wait(f"the worker processes of {self._name} are starting")

    def batches(
        self, indices: Iterable[int], epoch: int, epochs_ended: int
    ) -> Generator[Any, None, None]:
        """Yield items in order; see `SequenceLoader.batches`."""
        tasks = iter(indices)
        pending: deque[int] = deque()
        try:
            while True:
                self._issue(tasks, pending, epoch, epochs_ended)
                if not pending:
                    return
                batch = self._collect(pending[0])
                pending.popleft()
                yield batch
        finally:
            self._cancel(pending)

    def release(self) -> None:
        """Let the slots of all earlier batches be reused."""
        self._free += self._held
        self._held.clear()

    def close(self) -> None:
        """End the workers and the server, and free the memory."""
        self._descriptors.close()  # the workers see the end of the tasks, and of the leash
        if not self.pids:
            self._server.kill()  # still importing; newly forked workers end through the leash
        try:
            self._server.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            # Busy in the user's code, holding the GIL. The server ends with the last of them.
            for pid in self._alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                self._server.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        finally:
            os.close(self._notices_read)

    def _alive(self) -> list[int]:
        """Return the workers that the server has not reaped, whose ids are still valid."""
        self._take_notices()
        ended = {notice["ended"] for notice in self._notices if "ended" in notice}
        return [pid for pid in self.pids if pid not in ended]

    def _issue(
        self, tasks: Iterator[int], pending: deque[int], epoch: int, epochs_ended: int
    ) -> None:
        while len(pending) < self._ahead:
            if not self._free:
                if pending:
                    return
                self._wait_for_slot()
            index = next(tasks, None)
            if index is None:
                return
            task = Task(self._next_number, int(index), epoch, epochs_ended, self._free.pop())
            self._next_number += 1
            self._outstanding[task.number] = _Outstanding(task)
            pending.append(task.number)
            os.write(self._tasks, task.pack())

    def _wait_for_slot(self) -> None:
        """Wait until a worker finishes an item that is no longer needed."""
        while not self._free:
            if not self._outstanding:
                raise DataError(
                    f"{len(self._held)} batches of {self._name} are in use, and none is released.\n"
                    "A batch stays in shared memory until the loader's release() says that the "
                    "step that read it is done.\n"
                    "Call release() after each step, or ask for copies: batches(..., copy=True)."
                )
            self._wait(f"a dropped item of {self._name} is in preparation")

    def _cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._outstanding:
                self._outstanding[number].is_wanted = False
        wanted = [number for number, entry in self._outstanding.items() if entry.is_wanted]
        self._board.first_wanted = min(wanted, default=self._next_number)
        self._drop_unwanted()

    def _collect(self, number: int) -> Any:
        entry = self._outstanding[number]
        while entry.result is None:
            self._wait(f"item {entry.task.index} of {self._name} is in preparation")
        del self._outstanding[number]
        slot, result = entry.task.slot, entry.result
        if not result.failed:
            self._held.append(slot)
            return self._decoder.decode(self._slots[slot], (result.offset, result.size_bytes))
        self._free.append(slot)
        memory = self._slots[slot].memory(result.size_bytes)
        text = memory[: result.size_bytes].decode("utf-8", "replace")
        raise DataError(
            f"{self._name}[{entry.task.index}] failed in worker process "
            f"{self.pids[result.worker]}: {text.splitlines()[-1]}\n{text}"
        )

    def _wait(self, doing: str) -> None:
        """Wait for results or notices and process them; the exit of a worker is an error."""
        if self._failure is None:
            while not (events := dict(self._poll.poll(_SLOW_ITEM_S * 1000))):
                _logger.warning("%s for more than %.0f s", doing, _SLOW_ITEM_S)
            if self._results in events:
                self._read_results()
            if self._notices_read in events:
                self._failure = self._read_notices()
        if self._failure is not None:
            raise DataError(self._failure)

    def _read_results(self) -> None:
        self._unread += os.read(self._results, 1 << 16)
        size = Result.FORMAT.size
        whole = len(self._unread) // size * size
        for fields in Result.FORMAT.iter_unpack(self._unread[:whole]):
            result = Result(*fields)
            self._outstanding[result.number].result = result
        self._unread = self._unread[whole:]
        self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        done = [
            number
            for number, entry in self._outstanding.items()
            if entry.result is not None and not entry.is_wanted
        ]
        for number in done:
            self._free.append(self._outstanding.pop(number).task.slot)

    def _read_notices(self) -> str | None:
        """Process the server's notices; return why the pool is broken, or None."""
        server_is_alive = self._take_notices()
        for notice in self._notices:
            if "started" in notice:
                self.pids = notice["started"]
            elif "refused" in notice:
                raise CannotSendError(
                    f"{self._name} could not be made again in another process:\n"
                    f"{notice['refused'].rstrip()}"
                )
            elif "ended" in notice:
                return self._describe_end(notice["ended"], notice["code"])
        if server_is_alive:
            return None
        code = self._server.wait(_CLOSE_S)
        return (
            f"the process that starts the loader's workers (pid {self._server.pid}) ended: "
            f"{_describe_code(code)}.\n"
            "Without it, the exit of a worker would go unnoticed.\n"
            "Resume the experiment; its latest checkpoint is not affected."
        )

    def _take_notices(self) -> bool:
        """Read the available notices; return whether the server can send more."""
        try:
            content = os.read(self._notices_read, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._notice_text = (self._notice_text + content).split(b"\n")
        self._notices += [json.loads(line) for line in lines]
        return bool(content)

    def _describe_end(self, pid: int, code: int) -> str:
        number = self._board.task_of(self.pids.index(pid))
        entry = self._outstanding.get(number)
        doing = "between two items" if entry is None else f"at item {entry.task.index}"
        hint = " (the kernel does so when memory runs out)" if code == -signal.SIGKILL else ""
        return (
            f"worker process {pid} of {self._name} ended {doing}: {_describe_code(code)}{hint}.\n"
            "The item it was preparing is lost, so training cannot continue exactly.\n"
            "Resume the experiment; with fewer workers or a smaller max_queue_size if memory is "
            "short."
        )


def _pack_sequence(sequence: Any) -> Any:
    name = f"{type(sequence).__module__}.{type(sequence).__qualname__}"
    if not hasattr(os, "fork"):
        raise CannotSendError("this platform has no fork, which the workers are made with")
    if type(sequence).__module__ == "__main__":
        raise CannotSendError(
            f"{name} is defined in the script that runs, which another process cannot import.\n"
            "Move the class into a separate module."
        )
    try:
        return ForkingPickler.dumps(sequence)
    except Exception as error:
        raise CannotSendError(f"{name} cannot be pickled: {error}") from error


def _describe_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
