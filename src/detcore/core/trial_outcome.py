"""The outcome of a trial, derived from the way its with-block ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcore.contract.errors import DatabaseError, DetcoreError, DistributedError, InvalidHP
from detcore.contract.values import ExperimentState
from detcore.core.context_options import EarlyExitReason

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo


# Raised by networks, storage, records and other workers: the next start may succeed.
_FROM_OUTSIDE = (OSError, DatabaseError, DistributedError)
# TensorFlow's, where a file system far away does not answer.
_REMOTE_FILES = ("UnavailableError", "DeadlineExceededError")
# Operating system errors that the code or its settings cause.
_CERTAIN = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'(?P<indent> *)File "(?P<path>[^"]*)", line \d+')
# Frameworks wrap an error in a line that only announces it: it ends with a colon, or is one of
# these (Keras, TensorFlow, and torch.compile).
_ANNOUNCEMENT = re.compile(
    r".*:|(\w+: )?Exception encountered when calling .*|Node: '.*'|\d+ root error.*|<stack.*>"
    r"|\w+ when making fake tensor call"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptOutcome:
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
    def exit_code(self) -> int:
        """The code with which a worker ends, for the runner of a script."""
        codes = {ExperimentState.COMPLETED: 0, ExperimentState.PAUSED: _EXIT_TEMPFAIL}
        return codes.get(self.state, 1)

    @classmethod
    def failed_to_start(cls) -> ScriptOutcome:
        """Return the outcome of a script that could not open its context."""
        return cls(ExperimentState.ERROR, "the context could not be opened")


class WorkerFault(NamedTuple):
    """The error that ended a worker other than rank 0, whose events no process reads.

    Attributes:
        error: The error in one line.
        fault: As `ScriptOutcome.fault`.
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
        return error.code not in (None, 0, _EXIT_TEMPFAIL)
    return error is not None and not isinstance(error, GeneratorExit)


def derive_outcome(
    error: BaseException | None, *, is_preempted: bool, early_exit: EarlyExitReason | None
) -> ScriptOutcome:
    """Return how a trial ended.

    Args:
        error: The exception that ended the with-block, or None.
        is_preempted: Whether the training code agreed to stop early.
        early_exit: The reason that the training code reported, or None.
    """
    if isinstance(error, InvalidHP):
        return ScriptOutcome(ExperimentState.ERROR, describe_cause(error), is_invalid_hp=True)
    if isinstance(error, SystemExit):
        if error.code == _EXIT_TEMPFAIL:
            return ScriptOutcome(ExperimentState.PAUSED)
        if error.code not in (None, 0):
            text = f"the script ended with exit code {error.code}"
            if not isinstance(error.code, int):  # Python prints it and ends with code 1
                text = f"the script ended: {next(iter(str(error.code).splitlines()), '')}"
            return ScriptOutcome(ExperimentState.ERROR, text, fault=_fault_of(error))
    elif error is not None and not isinstance(error, GeneratorExit):
        return ScriptOutcome(ExperimentState.ERROR, describe_cause(error), fault=_fault_of(error))
    if early_exit is EarlyExitReason.INVALID_HP:
        return ScriptOutcome(ExperimentState.ERROR, None, is_invalid_hp=True)
    return ScriptOutcome(ExperimentState.PAUSED if is_preempted else ExperimentState.COMPLETED)


def _fault_of(error: BaseException) -> str | None:
    cause: BaseException | None = error
    while cause is not None:  # a DataError may report an error of the network
        is_outside = isinstance(cause, _FROM_OUTSIDE) or type(cause).__name__ in _REMOTE_FILES
        if is_outside and not isinstance(cause, _CERTAIN):
            return None
        cause = cause.__cause__ if isinstance(cause, DetcoreError) else None
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {frames[-1].filename}:{frames[-1].lineno}" if frames else name


def describe_cause(error: BaseException) -> str:
    """Return an error's class and the line of its message that names the cause.

    That is the first line, unless it only announces what follows. The cause is then the first line
    after it that belongs neither to a traceback nor to another announcement.

    Args:
        error: Any exception. The first line of a `DetcoreError` stands without its class.
    """
    lines = [line for line in strip_colours(str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    first = lines[0].strip()
    if isinstance(error, DetcoreError):
        return first
    if _ANNOUNCEMENT.fullmatch(first):
        rest = (line.strip() for line in drop_traceback_frames(lines[1:]))
        cause = next((line for line in rest if not _ANNOUNCEMENT.fullmatch(line)), None)
        if cause is not None:
            first = f"{first.rstrip('.:')}: {cause}"
    return f"{name}: {first}"


def strip_colours(text: str) -> str:
    """Return a message without the colours that some frameworks write into theirs."""
    return _COLOUR.sub("", text)


def drop_traceback_frames(
    lines: Iterable[str], *, is_kept: Callable[[str], bool] = lambda path: False
) -> Iterator[str]:
    """Yield lines, leaving out the frames of tracebacks that are part of a message.

    Args:
        lines: Lines of a message.
        is_kept: Whether frames of a file stay.
    """
    indent: int | None = None  # of the frame that is being left out
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            indent = None if is_kept(frame["path"]) else len(frame["indent"])
        elif indent is not None and line.strip() and _indent(line) <= indent:
            indent = None
        if indent is None:
            yield line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
