"""Run the process from which worker processes are forked, and the workers.

Forking the training process would copy TensorFlow's locks in whatever state its threads hold them.
This process is a fresh one, imports the user's module once, and has no such threads; the workers
that it forks share its copy of the Sequence's data until they write to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

from detcore_keras._loader._codec import IDLE, Board, Encoder, Layout, Result, Slot, Startup, Task
from detcore_keras._loader._seeding import end_epoch, seeded_item


def main(arguments: str) -> None:
    """Receive the Sequence, fork the workers, and notify the parent of each one that ends.

    Args:
        arguments: A `Startup` as JSON.
    """
    startup = Startup(**json.loads(arguments))
    # Sent to the whole process group, these signals ask the parent to checkpoint, for which it may
    # still need items. Server and workers end with the parent, through the leash.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Preparing data must not use the memory of a GPU that trains.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        with Connection(startup.sequence) as connection:
            sequence = connection.recv()
    except BaseException:  # noqa: BLE001  (the user's module is imported here: told to the parent)
        _tell(startup.notices, {"refused": traceback.format_exc()})
        raise SystemExit(1) from None
    pids = [_fork(startup, sequence, worker) for worker in range(startup.workers)]
    _tell(startup.notices, {"started": pids})
    for descriptor in (startup.tasks, startup.results, startup.leash):
        os.close(descriptor)
    for _ in pids:
        pid, status = os.wait()
        _tell(startup.notices, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})
    os._exit(0)  # tearing down the user's imports can take a second


def _tell(descriptor: int, notice: dict[str, Any]) -> None:
    # After a broken pipe, the parent is gone, and so are the workers, through the leash.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(notice).encode() + b"\n")


def _fork(startup: Startup, sequence: Any, worker: int) -> int:
    with warnings.catch_warnings():
        # Python 3.12 and later warn about threads; those here are idle pools of BLAS libraries.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.close(startup.notices)
        code = _work(startup, sequence, worker)
    except BaseException:  # noqa: BLE001  (the process's end: printed, and told by its exit code)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(startup: Startup, sequence: Any, worker: int) -> int:
    """Do tasks until the parent closes the pipe; return the exit code."""
    _end_with_the_parent(startup.leash)
    board = Board(startup.board, startup.workers)
    slots = [Slot(descriptor) for descriptor in startup.slots]
    encoder = Encoder()
    epochs_ended = startup.epochs_ended

    def prepare(task: Task) -> Layout:
        nonlocal epochs_ended
        while epochs_ended < task.epochs_ended:
            end_epoch(sequence, startup.seed, epochs_ended)
            epochs_ended += 1
        with seeded_item(sequence, startup.seed, task.epoch, task.index):
            item = sequence[task.index]
        return encoder.encode(item, slots[task.slot])

    while message := os.read(startup.tasks, Task.FORMAT.size):
        task = Task(*Task.FORMAT.unpack(message))
        board.set_task(worker, task.number)
        failed, layout = False, (0, 0)
        if task.number >= board.first_wanted:
            try:
                layout = prepare(task)
            except BaseException as error:  # noqa: BLE001  (the user's: raised in the parent)
                failed, layout = True, _put_error(error, slots[task.slot])
        result = Result(task.number, worker, failed, *layout)
        try:
            os.write(startup.results, result.pack())
        except BrokenPipeError:
            break  # the parent is gone
        board.set_task(worker, IDLE)
    return 0


def _put_error(error: BaseException, slot: Slot) -> Layout:
    text = _error_text(error).encode("utf-8", "replace")
    slot.memory(len(text), grow=True)[: len(text)] = text
    return 0, len(text)


def _error_text(error: BaseException) -> str:
    """Return the traceback without the frames of this module."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame)).rstrip()


def _end_with_the_parent(leash: int) -> None:
    """End this process when the parent does, even in the middle of an item."""

    def wait() -> None:
        os.read(leash, 1)
        os._exit(1)

    threading.Thread(target=wait, name="detcore-leash", daemon=True).start()
