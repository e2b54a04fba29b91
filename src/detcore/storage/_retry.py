"""Retry operations until a deadline."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from detcore.errors import StorageError
from detcore.storage._faults import is_transient

__all__ = ["RetryPolicy", "retry", "retry_async"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to retry when a store does not respond, or throttles requests.

    Attributes:
        deadline_s: A request (one file, or one part of a large one) that has not succeeded within
            this time, including retries, is an error.
        first_pause_s: Pause after the first failure; later ones double, up to `longest_pause_s`.
        longest_pause_s: The longest pause.
    """

    deadline_s: float = 180.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def pause(self, attempt: int) -> float:
        """Return the pause after a number of failures, in seconds."""
        longest = min(self.first_pause_s * 2.0**attempt, self.longest_pause_s)
        # Drawing from the generator that training uses would change the training.
        return random.SystemRandom().uniform(longest / 2, longest)


def retry(work: Callable[[], T], policy: RetryPolicy) -> T:
    """Call `work` until it succeeds, fails permanently, or the deadline passes.

    A running call is not interrupted: `work` must have a time limit.
    """
    end = time.monotonic() + policy.deadline_s
    attempt = 0
    while True:
        try:
            return work()
        except Exception as error:
            pause = policy.pause(attempt)
            if not is_transient(error) or time.monotonic() + pause >= end:
                raise
        time.sleep(pause)
        attempt += 1


async def retry_async(work: Callable[[], Awaitable[T]], policy: RetryPolicy) -> T:
    """Await `work()` until it succeeds, fails permanently, or the deadline passes.

    Raises:
        StorageError: If the last attempt was still running at the deadline.
    """
    end = time.monotonic() + policy.deadline_s
    attempt = 0
    last: Exception | None = None
    while True:
        try:
            return await asyncio.wait_for(work(), end - time.monotonic())
        except Exception as error:
            if isinstance(error, asyncio.TimeoutError) and time.monotonic() >= end:
                raise StorageError(
                    f"no answer within {policy.deadline_s:g} s"
                    + (f"; the try before failed with: {last}" if last is not None else "")
                    + ".\nThe store does not answer, or much too slowly."
                ) from error
            pause = policy.pause(attempt)
            if not is_transient(error) or time.monotonic() + pause >= end:
                raise
            last = error
        await asyncio.sleep(pause)
        attempt += 1
