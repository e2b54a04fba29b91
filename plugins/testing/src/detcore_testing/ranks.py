"""Ranks as processes of this machine, for tests of collective operations."""

from __future__ import annotations

import multiprocessing
import secrets
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from detcore.distributed import DistributedContext
from detcore.errors import PeerLostError

_T = TypeVar("_T")
_END_S = 5.0
# Failures in the order in which they are blamed: a rank that merely lost another one comes last.
_FAILURES = ("died", "raised", "lost", "late")


class RankError(AssertionError):
    """A rank raised, died or did not come to an end.

    Attributes:
        rank: Which one. Where several failed, the one that did not just lose another rank.
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"rank {rank}: {what}")
        self.rank = rank


def run_ranks(
    function: Callable[[DistributedContext], _T], size: int, *, timeout_s: float = 60.0
) -> list[_T]:
    """Call a function on `size` ranks at once; each receives its `DistributedContext`.

    Ranks are forks of this process: start no framework before them.

    ```python
    sums = run_ranks(lambda distributed: sum(distributed.allgather(distributed.rank)), 3)
    assert sums == [3, 3, 3]
    ```

    Args:
        function: Called on each rank; its return value must be picklable.
        size: Number of ranks; >= 1.
        timeout_s: How long all of it may take, in seconds.

    Returns:
        The return values of the function, by rank.

    Raises:
        RankError: If a rank raises, dies, or takes too long; it names the rank.
    """
    fork = multiprocessing.get_context("fork")
    key = secrets.token_hex(16)
    ranks = []
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; the children use nothing that a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        for rank in range(size):
            receiver, sender = fork.Pipe(duplex=False)
            arguments = (function, rank, size, key, timeout_s, sender)
            process = fork.Process(target=_work, args=arguments, daemon=True)
            process.start()
            sender.close()
            ranks.append((process, receiver))
    deadline = time.monotonic() + timeout_s
    answers: list[tuple[str, Any]] = []
    try:
        for process, receiver in ranks:
            try:
                is_there = receiver.poll(max(0.0, deadline - time.monotonic()))
                late = ("late", f"did not come to an end within {timeout_s} s")
                answers.append(receiver.recv() if is_there else late)
            except EOFError:
                process.join(_END_S)
                answers.append(("died", f"its process ended with code {process.exitcode}"))
    finally:
        for process, receiver in ranks:
            process.kill()
            process.join()
            receiver.close()
    for failure in _FAILURES:
        for rank, (outcome, what) in enumerate(answers):
            if outcome == failure:
                raise RankError(rank, what)
    return [value for _, value in answers]


def _work(
    function: Callable[[DistributedContext], Any],
    rank: int,
    size: int,
    key: str,
    timeout_s: float,
    answer: Connection,
) -> None:
    """Send the outcome of a rank, and its value or the text of its error."""
    try:
        with DistributedContext(
            rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
            key=key, timeout_s=timeout_s, connect_timeout_s=timeout_s,
        ) as distributed:  # fmt: skip
            value = function(distributed)
        answer.send(("returned", value))
    except BaseException as error:  # noqa: BLE001  (raised in the parent, with its rank)
        kind = "lost" if isinstance(error, PeerLostError) else "raised"
        answer.send((kind, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    answer.close()
