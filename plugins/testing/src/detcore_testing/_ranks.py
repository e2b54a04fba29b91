"""Ranks as threads or processes of this machine, for tests of collective operations."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

from detcore.distributed import DistributedContext
from detcore.errors import PeerLostError

_T = TypeVar("_T")

_END_S = 5.0


class RankError(AssertionError):
    """A rank raised, died or did not come to an end.

    Attributes:
        rank: Which one. Where several failed, the one that did not just lose another rank.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"rank {rank}: {what}")
        self.rank = rank


def run_ranks(
    function: Callable[[DistributedContext], _T],
    size: int,
    how: Literal["threads", "processes"] = "threads",
    *,
    timeout_s: float = 60.0,
) -> list[_T]:
    """Call a function on `size` ranks at once; each receives its `DistributedContext`.

    Threads are cheap and share this process, with its framework; the function must not use state of
    the process as its own. Processes are forks of this one: start no framework before them.

    ```python
    sums = run_ranks(lambda distributed: sum(distributed.allgather(distributed.rank)), 3)
    assert sums == [3, 3, 3]
    ```

    Args:
        function: Called on each rank; with processes, its return value must be picklable.
        size: Number of ranks; >= 1.
        how: Whether a rank is a thread or a process.
        timeout_s: How long all of it may take, in seconds.

    Returns:
        The return values of the function, by rank.

    Raises:
        RankError: If a rank raises, dies, or takes too long; it names the rank.
        ValueError: If `size` or `how` is out of its range.
    """
    if size < 1 or how not in ("threads", "processes"):
        raise ValueError(
            f"run_ranks(..., {size}, {how!r}): at least one rank, 'threads' or 'processes'"
        )
    key = secrets.token_hex(16)
    start = _start_threads if how == "threads" else _start_processes
    outcomes = start(function, size, key, timeout_s)
    return [outcomes[rank][1] for rank in range(size)]


def _start_threads(
    function: Callable[[DistributedContext], Any], size: int, key: str, timeout_s: float
) -> Mapping[int, tuple[BaseException | None, Any]]:
    outcomes: dict[int, tuple[BaseException | None, Any]] = {}

    def work(rank: int) -> None:
        try:
            with _context(rank, size, key, timeout_s) as distributed:
                outcomes[rank] = (None, function(distributed))
        except BaseException as error:  # noqa: BLE001  (raised by the caller, with its rank)
            outcomes[rank] = (error, None)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    _check({rank: outcome[0] for rank, outcome in outcomes.items()})
    for rank, thread in enumerate(threads):
        if thread.is_alive():
            raise RankError(rank, f"did not come to an end within {timeout_s} s")
    return outcomes


@contextlib.contextmanager
def _context(rank: int, size: int, key: str, timeout_s: float) -> Iterator[DistributedContext]:
    with DistributedContext(
        rank=rank,
        size=size,
        local_rank=rank,
        local_size=size,
        cross_rank=0,
        cross_size=1,
        key=key,
        timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
    ) as distributed:
        yield distributed


def _check(errors: Mapping[int, BaseException | None]) -> None:
    """Raise the error of the first failed rank; a `PeerLostError` only if all are such."""
    failed = {rank: error for rank, error in sorted(errors.items()) if error is not None}
    guilty = {r: error for r, error in failed.items() if not isinstance(error, PeerLostError)}
    for rank, error in {**guilty, **failed}.items():
        raise RankError(rank, f"{type(error).__name__}: {error}") from error


class _ToldError(Exception):
    """A failure that a process reported; the text is its traceback."""


def _start_processes(
    function: Callable[[DistributedContext], Any], size: int, key: str, timeout_s: float
) -> Mapping[int, tuple[BaseException | None, Any]]:
    fork = multiprocessing.get_context("fork")
    pairs = [fork.Pipe(duplex=False) for _ in range(size)]
    arguments = [(function, rank, size, key, timeout_s, pairs[rank][1]) for rank in range(size)]
    processes = [fork.Process(target=_work, args=each, daemon=True) for each in arguments]
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; the children use nothing that a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in processes:
            process.start()
    for _, end in pairs:
        end.close()
    try:
        answers = _receive([pair[0] for pair in pairs], timeout_s)
    finally:
        for process, (receiver, _) in zip(processes, pairs, strict=True):
            if receiver.poll(0):  # it is about to end, with a code that says why
                process.join(_END_S)
            process.kill()
            process.join()
            receiver.close()
    return _judged(answers, size, timeout_s, [process.exitcode for process in processes])


def _receive(receivers: list[Connection], timeout_s: float) -> dict[int, tuple[str, str, Any]]:
    """Return the last message of each process by rank.

    A rank that died is missing; for one that takes too long the message is ``("late", "", None)``.
    """
    answers = {}
    deadline = time.monotonic() + timeout_s
    for rank, receiver in enumerate(receivers):
        if receiver.poll(max(0.0, deadline - time.monotonic())):
            with contextlib.suppress(EOFError):
                answers[rank] = receiver.recv()
        else:
            answers[rank] = ("late", "", None)
    return answers


def _judged(
    answers: Mapping[int, tuple[str, str, Any]],
    size: int,
    timeout_s: float,
    codes: list[int | None],
) -> Mapping[int, tuple[BaseException | None, Any]]:
    for rank in range(size):
        if rank not in answers:
            raise RankError(rank, f"its process ended with code {codes[rank]}")
    guilty = {rank: each for rank, each in answers.items() if each[0] == "raised"}
    failed = guilty or {rank: each for rank, each in answers.items() if each[0] == "lost"}
    for rank, (_, what, told) in failed.items():
        raise RankError(rank, what) from _ToldError(f"\n{told}")
    for rank, (kind, _, _) in answers.items():
        if kind == "late":
            raise RankError(rank, f"did not come to an end within {timeout_s} s")
    return {rank: (None, value) for rank, (_, _, value) in answers.items()}


def _work(
    function: Callable[[DistributedContext], Any],
    rank: int,
    size: int,
    key: str,
    timeout_s: float,
    answer: Connection,
) -> None:
    try:
        with _context(rank, size, key, timeout_s) as distributed:
            value = function(distributed)
        answer.send(("returned", "", value))
    except BaseException as error:  # noqa: BLE001  (raised in the parent, with its rank)
        kind = "lost" if isinstance(error, PeerLostError) else "raised"
        answer.send((kind, f"{type(error).__name__}: {error}", traceback.format_exc()))
    answer.close()
