"""The outcome of a trial, derived from the way its with-block ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcore.core._cause import describe_cause
from detcore.core._modes import EarlyExitReason
from detcore.errors import DatabaseError, DistributedError, InvalidHP
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.types import TrialInfo

__all__ = ["Outcome", "WorkerFault", "is_failure", "outcome_of"]

# Raised by networks, storage, records and other workers: the next start may succeed.
_FROM_OUTSIDE = (OSError, DatabaseError, DistributedError)
# Operating system errors that the code or its settings cause.
_CERTAIN = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_EXIT_COME_BACK = 75  # sysexits' EX_TEMPFAIL: run again later


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended in this process.

    Attributes:
        state: The state to record.
        error: The error in one line, or None.
        is_invalid_hp: Whether the training code rejected its hyperparameters.
        fault: Kind and place of an error that the code causes (``"TypeError at train.py:3"``), by
            which the runner recognizes it when it recurs. None without an error, and for
            errors that come from outside.
    """

    state: ExperimentState
    error: str | None = None
    is_invalid_hp: bool = False
    fault: str | None = None

    @property
    def label(self) -> str:
        """The state as events and hooks say it."""
        return "INVALID_HP" if self.is_invalid_hp else self.state.value

    @property
    def record(self) -> str | None:
        """The error as the records keep it."""
        if not self.is_invalid_hp:
            return self.error
        return f"INVALID_HP: {self.error}" if self.error else "INVALID_HP"

    @classmethod
    def failed_to_start(cls) -> Outcome:
        """Return the outcome of a script that could not open its context."""
        return cls(ExperimentState.ERROR, "the context could not be opened")


class WorkerFault(NamedTuple):
    """The error that ended a worker other than rank 0, whose events no process reads.

    Attributes:
        error: The error in one line.
        fault: As `Outcome.fault`.
        has_begun: Whether it had begun to train, in a trial class.
    """

    error: str
    fault: str
    has_begun: bool

    def write(self, info: TrialInfo, rank: int) -> None:
        """Keep it in the trial's folder."""
        with contextlib.suppress(OSError):  # a full disk; the exit code still shows the failure
            _fault_file(info, rank).write_text(json.dumps(self._asdict()), encoding="utf-8")

    @classmethod
    def read(cls, info: TrialInfo, rank: int) -> WorkerFault | None:
        """Return the fault that a worker wrote, None if it wrote none here."""
        try:
            return cls(**json.loads(_fault_file(info, rank).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def _fault_file(info: TrialInfo, rank: int) -> Path:
    return Path(info.trial_dir) / f"fault-run{info.run_id}-rank{rank}.json"


def is_failure(error: BaseException | None) -> bool:
    """Whether the exception that ended a with-block is a failure."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0, _EXIT_COME_BACK)
    return error is not None and not isinstance(error, GeneratorExit)


def outcome_of(
    error: BaseException | None, *, is_preempted: bool, early_exit: EarlyExitReason | None
) -> Outcome:
    """Return how a trial ended.

    Args:
        error: The exception that ended the with-block, or None.
        is_preempted: Whether the training code agreed to stop early.
        early_exit: The reason that the training code reported, or None.
    """
    if isinstance(error, InvalidHP):
        return Outcome(ExperimentState.ERROR, describe_cause(error), is_invalid_hp=True)
    if isinstance(error, SystemExit):
        if error.code == _EXIT_COME_BACK:
            return Outcome(ExperimentState.PAUSED)
        if error.code not in (None, 0):
            text = f"the script ended with exit code {error.code}"
            return Outcome(ExperimentState.ERROR, text, fault=_fault_of(error))
    elif error is not None and not isinstance(error, GeneratorExit):
        return Outcome(ExperimentState.ERROR, describe_cause(error), fault=_fault_of(error))
    if early_exit is EarlyExitReason.INVALID_HP:
        return Outcome(ExperimentState.ERROR, None, is_invalid_hp=True)
    return Outcome(ExperimentState.PAUSED if is_preempted else ExperimentState.COMPLETED)


def _fault_of(error: BaseException) -> str | None:
    if isinstance(error, _FROM_OUTSIDE) and not isinstance(error, _CERTAIN):
        return None
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {frames[-1].filename}:{frames[-1].lineno}" if frames else name
