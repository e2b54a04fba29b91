"""Translate store errors into detcore's errors, and retry after transient errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import inspect
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import detcore.storage
from detcore.errors import DetcoreError, StorageError, in_one_line

# Libraries below fsspec whose errors concern the network or the store.
_CLIENTS = ("aiohttp", "azure", "botocore", "gcsfs", "google", "obstore", "urllib3")
# Errors that a retry cannot change.
_PERMANENT = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
_PERMANENT_NUMBERS = frozenset({errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS})
# Raised by aiohttp, with a cause of status 400 that does not come from the server.
_TRUNCATED_NAMES = frozenset({"ClientPayloadError"})
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
_RETRIED_STATUSES = (408, 429)
# Errors that renewed credentials or a corrected clock fix. S3 sends status 400 or 403.
_EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
)
_SKEWED_CODE = "RequestTimeTooSkewed"
# A status 401 of GCS, and a refused HEAD of S3 (whose response has no code), may mean expired or
# wrong credentials. Retries do not help against wrong credentials, so they end after this time.
_UNCLEAR_TIMEOUT_S = 20.0
_REFUSALS = ("PermissionDeniedError", "UnauthenticatedError")  # obstore's errors
_CODE_IN_TEXT = re.compile(r"<Code>(\w+)</Code>")
# The credential provider's message, which obstore repeats within its own message.
NO_CREDENTIALS = "no AWS credentials were found"
T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help: resets, timeouts, throttling, server errors, old credentials."""
    if _needs_renewal(error):
        return True
    if isinstance(error, (DetcoreError, *_PERMANENT)) or detcore.storage.is_storage_full(error):
        return False
    if isinstance(error, asyncio.TimeoutError | TimeoutError | ConnectionError):
        return True
    if type(error).__name__ in _TRUNCATED_NAMES:
        return True
    status = _find_status(error)
    if status is not None:
        return status >= 500 or status in _RETRIED_STATUSES
    if isinstance(error, OSError):
        return error.errno not in _PERMANENT_NUMBERS
    return _is_client_error(error) and type(error).__name__ not in _PERMANENT_NAMES


def _needs_renewal(error: BaseException) -> bool:
    """Whether renewed credentials, or a corrected clock, may help."""
    code = _find_code(error)
    return code in _EXPIRED_CODES or code == _SKEWED_CODE or _is_unclear(error)


def _is_unclear(error: BaseException) -> bool:
    """Whether credentials were refused without telling if they are expired or wrong."""
    if not _is_client_error(error):
        return False
    if type(error).__name__ in _REFUSALS:
        return _find_code(error) is None
    return _find_status(error) == 401


def _find_code(error: BaseException) -> str | None:
    """Return the error code of S3, such as ``"ExpiredToken"``, or None."""
    response = getattr(error, "response", None)  # botocore's
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code")
        return None if code is None else str(code)
    match = _CODE_IN_TEXT.search(str(error)) if _is_client_error(error) else None
    return match[1] if match else None


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)  # botocore's
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        for name in ("status", "code"):
            status = getattr(candidate, name, None)
            if isinstance(status, int) and 400 <= status < 600:
                return status
    return None


def _clean_message(error: BaseException) -> str:
    """Return an error's message, without the debug output of obstore."""
    return in_one_line(str(error).partition("Debug source")[0]).rstrip(".")


def _is_client_error(error: BaseException | None) -> bool:
    return type(error).__module__.partition(".")[0] in _CLIENTS


@contextlib.contextmanager
def translate_errors(what: str, url: str) -> Iterator[None]:
    """Translate the errors of clients, too; see `detcore.storage.translate_errors`."""
    try:
        with detcore.storage.translate_errors(what, url), _explain_refusals(what, url):
            yield
    except Exception as error:
        if isinstance(error, OSError | DetcoreError):
            raise
        if not (_is_client_error(error) or isinstance(error, asyncio.TimeoutError)):
            raise
        raise StorageError(
            f"{what} failed in {url}: {type(error).__name__}: {_clean_message(error)}.\n"
            "Check the address, the credentials and the network: detcore storage check URL"
        ) from error


@contextlib.contextmanager
def _explain_refusals(what: str, url: str) -> Iterator[None]:
    """Translate errors about credentials into `StorageError`, with advice."""
    try:
        yield
    except Exception as error:
        code, reason = _find_code(error), _clean_message(error)
        is_refused = type(error).__name__ in _REFUSALS or _find_status(error) == 403
        if NO_CREDENTIALS in reason:
            reason = NO_CREDENTIALS
            advice = (
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or access_key and "
                "secret_key of checkpoint_storage."
            )
        elif code == _SKEWED_CODE:
            advice = (
                "The clock of this machine differs too much from the clock of the store. Fix the "
                "clock (timedatectl set-ntp true), then try again."
            )
        elif code in _EXPIRED_CODES:
            advice = (
                "The credentials have expired. Renew them (for example: aws sso login), then try "
                "again."
            )
        elif is_refused or _needs_renewal(error):
            advice = (
                "The store refuses the credentials. Check that they are valid and may read and "
                f"write there (detcore storage check {url}), then try again."
            )
        else:
            raise
        raise StorageError(f"{what} failed in {url}: {reason}.\n{advice}") from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries when a store does not respond, or throttles requests.

    Attributes:
        deadline_s: Maximum duration of a request (one file, or one part of a large file), including
            retries.
        first_pause_s: Pause after the first failure. Later pauses double, up to `max_pause_s`.
        max_pause_s: Maximum pause.
        renew: Reads the credentials again. It is called before a retry if the store refused them.
    """

    deadline_s: float = 180.0
    first_pause_s: float = 0.1
    max_pause_s: float = 10.0
    renew: Callable[[], Awaitable[None] | None] | None = None

    def choose_pause(self, attempt: int) -> float:
        """Return the pause after a number of failures, in seconds."""
        longest = min(self.first_pause_s * 2.0**attempt, self.max_pause_s)
        # Drawing from the generator that training uses would change the training.
        return random.SystemRandom().uniform(longest / 2, longest)


class _Attempts:
    """Schedules the attempts of a request until its deadline."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._number = 0
        self.end = time.monotonic() + policy.deadline_s

    def plan_next(self, error: Exception) -> float | None:
        """Return the pause before the next attempt, or None after the last attempt."""
        now = time.monotonic()
        if _is_unclear(error) and self._number == 0:
            self.end = min(self.end, now + _UNCLEAR_TIMEOUT_S)
        pause = self._policy.choose_pause(self._number)
        self._number += 1
        return pause if is_transient(error) and now + pause < self.end else None


def retry(work: Callable[[], T], policy: RetryPolicy) -> T:
    """Call `work` until it succeeds, fails permanently, or the deadline passes.

    A running call is not interrupted: `work` must have a time limit.
    """
    attempts = _Attempts(policy)
    while True:
        try:
            return work()
        except Exception as error:
            pause = attempts.plan_next(error)
            if pause is None:
                raise
            needs_renewal = _needs_renewal(error)
        time.sleep(pause)
        if needs_renewal and policy.renew is not None:
            policy.renew()


async def retry_async(work: Callable[[], Awaitable[T]], policy: RetryPolicy) -> T:
    """Await `work()` until it succeeds, fails permanently, or the deadline passes.

    Raises:
        StorageError: If the last attempt was still running at the deadline.
    """
    attempts = _Attempts(policy)
    last: Exception | None = None
    while True:
        try:
            return await asyncio.wait_for(work(), attempts.end - time.monotonic())
        except Exception as error:
            if isinstance(error, asyncio.TimeoutError) and time.monotonic() >= attempts.end:
                if last is not None and _needs_renewal(last):
                    raise last from last.__cause__
                raise StorageError(
                    f"no response within {policy.deadline_s:g} s"
                    + (f"; the previous attempt failed with: {last}" if last is not None else "")
                    + ".\nThe store does not respond, or is too slow."
                ) from error
            pause = attempts.plan_next(error)
            if pause is None:
                raise
            last = error
        await asyncio.sleep(pause)
        if policy.renew is not None and _needs_renewal(last):
            renewal = policy.renew()
            if inspect.isawaitable(renewal):
                await renewal
