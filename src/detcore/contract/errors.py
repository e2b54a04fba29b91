"""Every error that detcore raises on purpose.

All errors derive from `DetcoreError`, and from a built-in exception where one fits. A message says
what happened with the values, why, and what to do next. Values that a program may need are
attributes.

The hierarchy, with built-in bases in parentheses::

    DetcoreError (Exception)
        ConfigError (ValueError)
            StorageTypeError (TypeError)
        InvalidExperimentError (ValueError)
            InvalidDataTypeError (TypeError)
            InvalidModelError (TypeError)
            CheckFailedError
        InvalidHP
        InvalidArgumentError (ValueError, TypeError, AssertionError)
        DataError (ValueError)
            ShardError
            LedgerError
        MetricError (ValueError)
            NotANumberError
            MetricTypeError (TypeError)
        ScheduleError (ValueError)
        PluginError
            PluginNotFoundError (LookupError)
            PluginConflictError
            UnavailableError (ConnectionError)
        CheckpointError
            CheckpointNotFoundError (LookupError)
                NoCheckpointError (NotFoundError, AssertionError, ValueError)
            CheckpointCorruptError
            CheckpointStateError
            CheckpointTimeoutError (TimeoutError)
            CheckpointConflictError (RuntimeError)
            InvalidCheckpointError (ValueError)
        StorageError (OSError)
            StorageFullError
        UnsafePathError (ValueError)
        DatabaseError
        NotFoundError (LookupError)
        ContextStateError (RuntimeError)
        DistributedError (RuntimeError)
            PeerLostError
            CollectiveTimeoutError (TimeoutError)
            CollectiveMismatchError
        RunError (RuntimeError)
            InexactResumeError
            SearchError
            WorkerError
            ExperimentPausedError (ValueError)
        UnauthenticatedError (PermissionError)
        ForbiddenError (PermissionError)
            TooManyLoginAttemptsError
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Mapping

__all__ = [
    "CheckFailedError",
    "CheckpointConflictError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointNotFound",
    "CheckpointNotFoundError",
    "CheckpointStateError",
    "CheckpointTimeoutError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "ConfigError",
    "ContextStateError",
    "DataError",
    "DatabaseError",
    "DetcoreError",
    "DistributedError",
    "ExperimentPausedError",
    "ForbiddenError",
    "InexactResumeError",
    "InvalidArgumentError",
    "InvalidCheckpointError",
    "InvalidConfigurationException",
    "InvalidDataTypeError",
    "InvalidDataTypeException",
    "InvalidExperimentError",
    "InvalidExperimentException",
    "InvalidHP",
    "InvalidModelError",
    "InvalidModelException",
    "LedgerError",
    "MetricError",
    "MetricTypeError",
    "NoCheckpointError",
    "NotANumberError",
    "NotFoundError",
    "PeerLostError",
    "PluginConflictError",
    "PluginError",
    "PluginNotFoundError",
    "RunError",
    "ScheduleError",
    "SearchError",
    "ShardError",
    "StorageError",
    "StorageFullError",
    "StorageTypeError",
    "TooManyLoginAttemptsError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsafePathError",
    "WorkerError",
    "closest_match",
    "describe",
    "in_one_line",
]  # fmt: skip

_MAX_LENGTH = 60
_MAX_CLOSEST_MATCH = 200
_PUNCTUATION = (".", "!", "?", ":", ";", ",")


class DetcoreError(Exception):
    """Base of every error that detcore and its plugins raise on purpose."""


class ConfigError(DetcoreError, ValueError):
    """Raised when an experiment file or one of its settings cannot be used."""


class InvalidExperimentError(DetcoreError, ValueError):
    """Raised when a trial class or its settings break a rule of the trial API."""


class InvalidDataTypeError(InvalidExperimentError, TypeError):
    """Raised when a data loader returns an unsupported type."""


class InvalidModelError(InvalidExperimentError, TypeError):
    """Raised when a model-building method returns something that cannot be trained."""


class CheckFailedError(InvalidExperimentError):
    """Raised when a caller breaks a documented rule of the API."""


class InvalidHP(DetcoreError):
    """Raised by user code to reject the trial's hyperparameters."""


class DataError(DetcoreError, ValueError):
    """Raised for data that cannot be trained on, and for a position that does not fit the data."""


class ShardError(DataError):
    """Raised for a rank outside the world size, and for an unknown shard."""


class LedgerError(DataError):
    """Raised when a data ledger is missing or damaged, or shows lost or repeated records."""


class MetricError(DetcoreError, ValueError):
    """Raised when a metric cannot be reported or compared."""


class NotANumberError(MetricError):
    """Raised when a metric is NaN and the experiment sets ``stop_at_nan``."""

    @classmethod
    def raise_if_nan(cls, metrics: Mapping[str, object], where: str) -> None:
        """Raise this error if a metric is NaN.

        Args:
            metrics: Metrics by name. Values that are not numbers are skipped.
            where: Source of the metrics, for the message.
        """
        for name, value in metrics.items():
            if isinstance(value, numbers.Real) and math.isnan(value):
                raise cls(
                    f"{name} is NaN in {where}, and stop_at_nan is set.\n"
                    "Checkpoints, if any, are from before it. Lower the learning rate, clip the "
                    "gradients, or look for NaN in the data."
                )


class MetricTypeError(MetricError, TypeError):
    """Raised when a value, a reducer or a data type cannot be converted into a metric."""


class ScheduleError(DetcoreError, ValueError):
    """Raised when a period or a length cannot be converted into batches."""


class PluginError(DetcoreError):
    """Raised when a plugin cannot be loaded, or when its hook fails."""


class PluginNotFoundError(PluginError, LookupError):
    """Raised when no plugin provides the requested name."""


class PluginConflictError(PluginError):
    """Raised when two distributions provide a plugin of the same name."""


class UnavailableError(PluginError, ConnectionError):
    """Raised by an observer hook when its service is unreachable.

    detcore keeps the event and all later events of that plugin, and delivers them when the service
    is reachable again. After any other exception of the hook, the event counts as delivered.
    """


class CheckpointError(DetcoreError):
    """Base of the checkpoint errors."""


class CheckpointNotFoundError(CheckpointError, LookupError):
    """Raised when no committed checkpoint has the requested name."""


class CheckpointCorruptError(CheckpointError):
    """Raised when the files of a committed checkpoint differ from its manifest."""


class CheckpointStateError(CheckpointError):
    """Raised when a checkpoint is deleted, incomplete, or in use by a registered model."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """Raised when a background save does not finish before its deadline.

    Attributes:
        uuid: Identifier of the checkpoint.
    """

    def __init__(self, message: str, *, uuid: str = "") -> None:
        super().__init__(message)
        self.uuid = uuid


class CheckpointConflictError(CheckpointError, RuntimeError):
    """Raised when the ranks of a sharded checkpoint disagree about a file or a metadata key."""


class InvalidCheckpointError(CheckpointError, ValueError):
    """Raised when a checkpoint has the wrong kind or does not fit the model."""


class StorageError(DetcoreError, OSError):
    """Raised when a storage back end fails."""


class StorageFullError(StorageError):
    """Raised when a storage back end has no space left.

    Attributes:
        missing_bytes: Number of missing bytes, or None if the back end does not report it.
    """

    def __init__(self, message: str, *, missing_bytes: int | None = None) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class StorageTypeError(ConfigError, TypeError):
    """Raised when no installed plugin provides a storage type."""


class UnsafePathError(DetcoreError, ValueError):
    """Raised when a path leads out of its root."""


class DatabaseError(DetcoreError):
    """Raised when the record store cannot be opened or contains unexpected data."""


class NotFoundError(DetcoreError, LookupError):
    """Raised when no experiment, trial, model or other record has the requested identifier."""


class ContextStateError(DetcoreError, RuntimeError):
    """Raised when a Core API call comes too early, too late, twice, or on the wrong worker."""


class DistributedError(DetcoreError, RuntimeError):
    """Raised when ranks are inconsistent, or when a collective fails."""


class PeerLostError(DistributedError):
    """Raised on the remaining workers when one dies, raises or closes its context.

    Attributes:
        rank: Rank of the lost worker, over all nodes.
    """

    def __init__(self, message: str, *, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class CollectiveTimeoutError(DistributedError, TimeoutError):
    """Raised when not every worker calls a collective before its deadline.

    Attributes:
        ranks: Ranks of the missing workers, over all nodes.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class CollectiveMismatchError(DistributedError):
    """Raised when workers call different collectives at the same time.

    Attributes:
        ranks: Ranks of the workers that diverge from the majority, over all nodes.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RunError(DetcoreError, RuntimeError):
    """Raised when an experiment cannot be started, resumed, stopped or deleted in its state."""


class InexactResumeError(RunError):
    """Raised when a resumed trial differs from the run that it continues."""


class SearchError(RunError):
    """Raised when a search method receives or returns something impossible."""


class WorkerError(RunError):
    """Raised when a worker process cannot be started, or exits before its trial is finished."""

    setting: str | None = None  # the cause, such as "launcher.partition"


class InvalidArgumentError(DetcoreError, ValueError, TypeError, AssertionError):
    """Raised when arguments of a client method are invalid, alone or in combination.

    Determined documents AssertionError for some arguments and ValueError for others.
    """


class NoCheckpointError(CheckpointNotFoundError, NotFoundError, AssertionError, ValueError):
    """Raised when no checkpoint fits a request, such as the best checkpoint of a new trial.

    Determined documents AssertionError for some of these requests and ValueError for others.
    """


class ExperimentPausedError(RunError, ValueError):
    """Raised when a caller waits for an experiment that is not running."""


class UnauthenticatedError(DetcoreError, PermissionError):
    """Raised when a request has no token, or an invalid or expired token."""


class ForbiddenError(DetcoreError, PermissionError):
    """Raised when a user lacks permission, or when a login fails."""


class TooManyLoginAttemptsError(ForbiddenError):
    """Raised after too many wrong passwords.

    For a while, the server rejects every password, including the correct password.

    Attributes:
        retry_after_s: Seconds until the server accepts another attempt.
    """

    def __init__(self, message: str, *, retry_after_s: int = 60) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


# Determined's names.
CheckpointNotFound = CheckpointNotFoundError
InvalidExperimentException = InvalidExperimentError
InvalidDataTypeException = InvalidDataTypeError
InvalidConfigurationException = ConfigError
InvalidModelException = InvalidModelError


def describe(value: object) -> str:
    """Return a value and its type in one short line, for error messages.

    Example::

        >>> describe(7)
        '7 (int)'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  (a failing repr must not hide the message)
        text = "a value without a repr"
    if len(text) > _MAX_LENGTH:
        text = text[: _MAX_LENGTH - 3] + "..."
    kind = type(value)
    return f"{text} ({kind.__module__}.{kind.__qualname__})".replace("(builtins.", "(")


def in_one_line(*messages: object) -> str:
    """Join messages of one or more lines into one line.

    A line without final punctuation gets a full stop if another line follows.

    Example::

        >>> in_one_line("connection refused\\nIs it running?", "Reports are kept")
        'connection refused. Is it running? Reports are kept'
    """
    text = "\n".join(map(str, messages))
    *lines, last = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or [""]
    ended = [line if line.endswith(_PUNCTUATION) else f"{line}." for line in lines]
    return " ".join([*ended, last])


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None if no name is similar.

    Example::

        >>> closest_match("droput", ["dropout", "learning_rate"])
        'dropout'
    """
    import difflib

    if len(name) > _MAX_CLOSEST_MATCH:
        return None  # the comparison takes time quadratic in the length
    candidates = {_normalize(candidate): candidate for candidate in sorted(names, reverse=True)}
    matches = difflib.get_close_matches(_normalize(name), candidates, n=1)
    return candidates[matches[0]] if matches else None


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()) or name
