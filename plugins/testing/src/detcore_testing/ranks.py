"""Local rank processes for tests of collective operations."""

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
_EXIT_TIMEOUT_S = 5.0
# Failures in order of blame. A rank that only lost another rank is not the cause.
_FAILURES = ("died", "raised", "lost", "late")


class RankError(AssertionError):
    """Raised when a rank raises an exception, dies or does not finish.

    Attributes:
        rank: The failed rank. If several ranks failed, a rank that did not just lose another rank.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank}: {reason}")
        self.rank = rank


def run_ranks(
    function: Callable[[DistributedContext], _T], size: int, *, timeout_s: float = 60.0
) -> list[_T]:
    """Call a function concurrently on `size` ranks. Each rank receives its `DistributedContext`.

    Ranks are forks of this process, so start no framework before this call.

    ```python
    sums = run_ranks(lambda distributed: sum(distributed.allgather(distributed.rank)), 3)
    assert sums == [3, 3, 3]
    ```

    Args:
        function: Function to call on each rank. Its return value must be picklable.
        size: Number of ranks, at least 1.
        timeout_s: Timeout of the complete call in seconds.

    Returns:
        The function's return values by rank.

    Raises:
        RankError: If a rank raises an exception, dies or exceeds the timeout.
    """
    fork = multiprocessing.get_context("fork")
    key = secrets.token_hex(16)
    ranks = []
    with warnings.catch_warnings():
        # Python 3.12 warns about threads. The children use no locks that a thread could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        for rank in range(size):
            receiver, sender = fork.Pipe(duplex=False)
            arguments = (function, rank, size, key, timeout_s, sender)
            process = fork.Process(target=_run_rank, args=arguments, daemon=True)
            process.start()
            sender.close()
            ranks.append((process, receiver))
    deadline = time.monotonic() + timeout_s
    answers: list[tuple[str, Any]] = []
    try:
        for process, receiver in ranks:
            try:
                is_ready = receiver.poll(max(0.0, deadline - time.monotonic()))
                timeout = ("late", f"did not finish within {timeout_s} s")
                answers.append(receiver.recv() if is_ready else timeout)
            except EOFError:
                process.join(_EXIT_TIMEOUT_S)
                answers.append(("died", f"its process exited with code {process.exitcode}"))
    finally:
        for process, receiver in ranks:
            process.kill()
            process.join()
            receiver.close()
    for failure in _FAILURES:
        for rank, (outcome, reason) in enumerate(answers):
            if outcome == failure:
                raise RankError(rank, reason)
    return [value for _, value in answers]


def _run_rank(
    function: Callable[[DistributedContext], Any],
    rank: int,
    size: int,
    key: str,
    timeout_s: float,
    answer: Connection,
) -> None:
    """Call the function, and send its outcome and its value or error message."""
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
