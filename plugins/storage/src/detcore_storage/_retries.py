"""Translate the errors of stores into detcore's; try again after those that pass."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import detcore.storage
from detcore.errors import DetcoreError, StorageError, in_one_line

__all__ = [
    "RetryPolicy",
    "is_transient",
    "means_exists",
    "retry",
    "retry_async",
    "translated",
]

# Libraries below fsspec whose errors concern the network or the store.
_CLIENTS = ("aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "obstore", "urllib3")
# Errors that a retry cannot change.
_PERMANENT = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
_PERMANENT_NUMBERS = frozenset({errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS})
# Raised by aiohttp, with a cause of status 400 that no server sent.
_CUT_OFF = frozenset({"ClientPayloadError"})
_PERMANENT_NAMES = frozenset(
    {
        "AlreadyExistsError",
        "DefaultCredentialsError",
        "InvalidPathError",
        "NoCredentialsError",
        "NotFoundError",
        "NotSupportedError",
        "ParamValidationError",
        "PartialCredentialsError",
        "PermissionDeniedError",
        "PreconditionError",
        "ProfileNotFound",
        "UnauthenticatedError",
        "UnknownConfigurationKeyError",
    }
)
_PATIENCE = (408, 429)
T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help: resets, timeouts, throttling, server errors."""
    if isinstance(error, (DetcoreError, *_PERMANENT)) or detcore.storage.is_full(error):
        return False
    if isinstance(error, asyncio.TimeoutError | TimeoutError | ConnectionError):
        return True
    if type(error).__name__ in _CUT_OFF:
        return True
    status = _status(error)
    if status is not None:
        return status >= 500 or status in _PATIENCE
    if isinstance(error, OSError):
        return error.errno not in _PERMANENT_NUMBERS
    return _is_of_a_client(error) and type(error).__name__ not in _PERMANENT_NAMES


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "code"):
            status = getattr(candidate, name, None)
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _text(error: BaseException) -> str:
    """Return an error's own text; obstore repeats all of it for developers."""
    return in_one_line(str(error).partition("Debug source")[0]).rstrip(".")


def _is_of_a_client(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _CLIENTS


def means_exists(error: BaseException) -> bool:
    """Whether a failed create-only write means that the key exists.

    s3fs 2026.9 maps a 412 to FileExistsError only if the server's answer names the condition,
    which SeaweedFS does not do; the error's cause has the status then.
    """
    if isinstance(error, FileExistsError):
        return True
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return False
    return bool(response.get("Error", {}).get("Code") == "PreconditionFailed")


@contextlib.contextmanager
def translated(what: str, url: str) -> Iterator[None]:
    """Turn the errors of clients, too, into `StorageError`; see `detcore.storage.translated`."""
    try:
        with detcore.storage.translated(what, url):
            yield
    except Exception as error:
        if isinstance(error, OSError | DetcoreError):
            raise
        if not (_is_of_a_client(error) or isinstance(error, asyncio.TimeoutError)):
            raise
        raise StorageError(
            f"{what} failed in {url}: {type(error).__name__}: {_text(error)}.\n"
            "Check the address, the credentials and the network: detcore storage check URL"
        ) from error


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
