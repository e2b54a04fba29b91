"""Every error that detcore raises on purpose.

All derive from `DetcoreError`, and from a built-in exception where one fits. A message says what
happened with the values, why, and what to do next; values a program may need are attributes.
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
    """Base of every error raised on purpose by detcore and its plugins."""


class ConfigError(DetcoreError, ValueError):
    """An experiment file, or a setting of one, that cannot be used."""


class InvalidExperimentError(DetcoreError, ValueError):
    """A trial class or its settings break a rule of the trial API."""


class InvalidDataTypeError(InvalidExperimentError, TypeError):
    """A data loader returned something that is not one of the supported kinds."""


class InvalidModelError(InvalidExperimentError, TypeError):
    """A model-building method returned or built something that cannot be trained."""


class CheckFailedError(InvalidExperimentError):
    """A rule that the API documents state was broken by the caller."""


class InvalidHP(DetcoreError):
    """Raised by user code to reject the trial's hyperparameters."""


class DataError(DetcoreError, ValueError):
    """Data that cannot be trained on, or a data position that does not fit it."""


class ShardError(DataError):
    """A rank outside the world, or a shard that does not exist."""


class LedgerError(DataError):
    """A data ledger that is missing, damaged, or proves that records were lost or repeated."""


class MetricError(DetcoreError, ValueError):
    """A metric that cannot be reported or used to decide."""


class NotANumberError(MetricError):
    """A metric that is NaN, in an experiment that ends at the first one."""

    @classmethod
    def raise_if_nan(cls, metrics: Mapping[str, object], where: str) -> None:
        """Raise it if a metric is NaN.

        Args:
            metrics: Metrics by name; other values than numbers are left alone.
            where: Their source, for the message.
        """
        for name, value in metrics.items():
            if isinstance(value, numbers.Real) and math.isnan(value):
                raise cls(
                    f"{name} is NaN in {where}, and stop_at_nan is set.\n"
                    "Checkpoints, if any, are from before it. Lower the learning rate, clip the "
                    "gradients, or look for NaN in the data."
                )


class MetricTypeError(MetricError, TypeError):
    """A metric, a reducer or a data type of a kind that no metric can be made from."""


class ScheduleError(DetcoreError, ValueError):
    """Periods or lengths that cannot be turned into batches."""


class PluginError(DetcoreError):
    """A plugin that could not be loaded, or whose hook failed."""


class PluginNotFoundError(PluginError, LookupError):
    """No plugin provides the requested name."""


class PluginConflictError(PluginError):
    """Two distributions provide a plugin of the same name."""


class UnavailableError(PluginError, ConnectionError):
    """Raised by an observer hook: the service that it talks to cannot be reached now.

    The event, and all later ones of that plugin, are kept and delivered when it can be reached
    again. Any other exception of an observer hook counts as its answer.
    """


class CheckpointError(DetcoreError):
    """Base of the checkpoint errors."""


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No committed checkpoint of that name."""


class CheckpointCorruptError(CheckpointError):
    """A committed checkpoint whose files are not what its manifest says."""


class CheckpointStateError(CheckpointError):
    """A checkpoint that is deleted, or not yet complete, or that a model in the registry needs."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """A save that runs behind the training was not over in time.

    Attributes:
        uuid: The checkpoint.
    """

    def __init__(self, message: str, *, uuid: str = "") -> None:
        super().__init__(message)
        self.uuid = uuid


class CheckpointConflictError(CheckpointError, RuntimeError):
    """Ranks of one sharded checkpoint disagree about a file or a metadata key."""


class InvalidCheckpointError(CheckpointError, ValueError):
    """A checkpoint of the wrong kind, or one that does not fit the model it is restored into."""


class StorageError(DetcoreError, OSError):
    """A storage back end failed."""


class StorageFullError(StorageError):
    """No room left.

    Attributes:
        missing_bytes: How many bytes more were needed, or None where the store cannot tell.
    """

    def __init__(self, message: str, *, missing_bytes: int | None = None) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class StorageTypeError(ConfigError, TypeError):
    """A storage type that no installed plugin provides."""


class UnsafePathError(DetcoreError, ValueError):
    """A path that would leave its root."""


class DatabaseError(DetcoreError):
    """The record store cannot be opened, or holds something unexpected."""


class NotFoundError(DetcoreError, LookupError):
    """No experiment, trial, model or other record with that identifier."""


class ContextStateError(DetcoreError, RuntimeError):
    """A call of the Core API that comes too early, too late, twice, or on the wrong worker."""


class DistributedError(DetcoreError, RuntimeError):
    """Ranks that do not add up, or a collective that failed."""


class PeerLostError(DistributedError):
    """A worker died, closed its context or raised, and the others wait for it in vain.

    Attributes:
        rank: The worker that is gone, by its index over all nodes.
    """

    def __init__(self, message: str, *, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class CollectiveTimeoutError(DistributedError, TimeoutError):
    """A collective was not called by every worker before its deadline.

    Attributes:
        ranks: The workers that are missing, by their indices over all nodes.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class CollectiveMismatchError(DistributedError):
    """Workers called different collectives at the same time.

    Attributes:
        ranks: The workers that diverge from the majority, by their indices over all nodes.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RunError(DetcoreError, RuntimeError):
    """An experiment that cannot be started, resumed, ended or deleted as it stands."""


class SearchError(RunError):
    """A search method received an impossible event, or gave an impossible answer."""


class WorkerError(RunError):
    """A worker process that ended without finishing its trial, or could not be started."""


class InvalidArgumentError(DetcoreError, ValueError, TypeError, AssertionError):
    """Arguments of a client's method that cannot be used, or not together.

    The documents name AssertionError for some of them and ValueError for others.
    """


class NoCheckpointError(CheckpointNotFoundError, NotFoundError, AssertionError, ValueError):
    """No checkpoint fits the request, such as the best one of a trial that has none."""


class ExperimentPausedError(RunError, ValueError):
    """An experiment that is waited for, but does not run."""


class UnauthenticatedError(DetcoreError, PermissionError):
    """A server was asked without a token, or with one that is not, or no longer, good."""


class ForbiddenError(DetcoreError, PermissionError):
    """A server knows who asks, and refuses; or a name and a password do not belong together."""


class TooManyLoginAttemptsError(ForbiddenError):
    """Too many wrong passwords: a server accepts no password for a while, not even the right one.

    Attributes:
        retry_after_s: Seconds until the server accepts another attempt.
    """

    def __init__(self, message: str, *, retry_after_s: int = 60) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


# Names that the earlier system published.
CheckpointNotFound = CheckpointNotFoundError
InvalidExperimentException = InvalidExperimentError
InvalidDataTypeException = InvalidDataTypeError
InvalidConfigurationException = ConfigError
InvalidModelException = InvalidModelError


def describe(value: object) -> str:
    """Return a value and its type in one short line, for messages of errors.

    Example::

        >>> describe(7)
        '7 (int)'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  (whatever a foreign repr raises, the message matters more)
        text = "a value that has no repr"
    if len(text) > _MAX_LENGTH:
        text = text[: _MAX_LENGTH - 3] + "..."
    kind = type(value)
    return f"{text} ({kind.__module__}.{kind.__qualname__})".replace("(builtins.", "(")


def in_one_line(*messages: object) -> str:
    """Join messages, each of one line or several, into one line.

    A line that ends without punctuation gets a full stop where another line follows it.

    Example::

        >>> in_one_line("connection refused\\nIs it running?", "Reports are kept")
        'connection refused. Is it running? Reports are kept'
    """
    text = "\n".join(map(str, messages))
    *lines, last = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or [""]
    ended = [line if line.endswith(_PUNCTUATION) else f"{line}." for line in lines]
    return " ".join([*ended, last])


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that was probably meant, or None if none is near.

    Example::

        >>> closest_match("droput", ["dropout", "learning_rate"])
        'dropout'
    """
    import difflib

    if len(name) > _MAX_CLOSEST_MATCH:
        return None  # the time to compare grows with the square of the length
    plain = {_letters(each): each for each in sorted(names, reverse=True)}
    near = difflib.get_close_matches(_letters(name), plain, n=1)
    return plain[near[0]] if near else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()) or name
