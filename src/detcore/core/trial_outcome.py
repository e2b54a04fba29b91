"""Derive the outcome of a trial from how its with-block exited."""

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


# Errors of networks, storage, records and other workers: the next start may succeed.
_EXTERNAL_ERRORS = (OSError, DatabaseError, DistributedError)
# Names of TensorFlow's errors for remote file systems that do not answer.
_EXTERNAL_ERROR_NAMES = ("UnavailableError", "DeadlineExceededError")
# Operating system errors caused by the code or its settings.
_CODE_ERRORS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_EXIT_TEMPFAIL = 75  # EX_TEMPFAIL in sysexits.h: run again later
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'(?P<indent> *)File "(?P<path>[^"]*)", line \d+')
# First lines of messages that only announce an error: lines that end with a colon, and fixed
# phrases of Keras, TensorFlow and torch.compile.
_ANNOUNCEMENT = re.compile(
    r".*:|(\w+: )?Exception encountered when calling .*|Node: '.*'|\d+ root error.*|<stack.*>"
    r"|\w+ when making fake tensor call"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """Outcome of a trial in this process.

    Attributes:
        state: The state to record.
        error: The error in one line, or None.
        is_invalid_hp: Whether the training code rejected its hyperparameters.
        fault: Type and location of an error in the code (``"TypeError at train.py:3"``), by which
            the runner recognizes that it recurs. None without an error, and for external errors.
    """

    state: ExperimentState
    error: str | None = None
    is_invalid_hp: bool = False
    fault: str | None = None

    @property
    def label(self) -> str:
        """Name of the state in events and hooks."""
        return "INVALID_HP" if self.is_invalid_hp else self.state.value

    @property
    def exit_code(self) -> int:
        """Exit code that a worker with this outcome has; for the runner of a script."""
        codes = {ExperimentState.COMPLETED: 0, ExperimentState.PAUSED: _EXIT_TEMPFAIL}
        return codes.get(self.state, 1)

    @classmethod
    def failed_to_start(cls) -> ScriptOutcome:
        """Return the outcome of a script that could not open its context."""
        return cls(ExperimentState.ERROR, "the context could not be opened")


class WorkerFault(NamedTuple):
    """Error that ended a worker other than rank 0, which has no event log.

    Attributes:
        error: The error in one line.
        fault: As in `ScriptOutcome.fault`.
        has_begun: Whether a trial class had started to train.
    """

    error: str
    fault: str
    has_begun: bool

    def write(self, info: TrialInfo, rank: int) -> None:
        """Write the fault to a file in the trial's directory."""
        with contextlib.suppress(OSError):  # a full disk; the exit code still shows the failure
            _get_fault_path(info, rank).write_text(json.dumps(self._asdict()), encoding="utf-8")

    @classmethod
    def read(cls, info: TrialInfo, rank: int) -> WorkerFault | None:
        """Return the fault that a worker wrote; None if the file does not exist on this machine."""
        try:
            return cls(**json.loads(_get_fault_path(info, rank).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def _get_fault_path(info: TrialInfo, rank: int) -> Path:
    return Path(info.trial_dir) / f"fault-run{info.run_id}-rank{rank}.json"


def is_failure(error: BaseException | None) -> bool:
    """Whether the exception that ended a with-block is a failure."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0, _EXIT_TEMPFAIL)
    return error is not None and not isinstance(error, GeneratorExit)


def derive_outcome(
    error: BaseException | None, *, is_preempted: bool, early_exit: EarlyExitReason | None
) -> ScriptOutcome:
    """Return the outcome of a trial.

    Args:
        error: The exception that ended the with-block, or None.
        is_preempted: Whether the training code accepted a request to stop early.
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
            return ScriptOutcome(ExperimentState.ERROR, text, fault=_describe_fault(error))
    elif error is not None and not isinstance(error, GeneratorExit):
        return ScriptOutcome(
            ExperimentState.ERROR, describe_cause(error), fault=_describe_fault(error)
        )
    if early_exit is EarlyExitReason.INVALID_HP:
        return ScriptOutcome(ExperimentState.ERROR, None, is_invalid_hp=True)
    return ScriptOutcome(ExperimentState.PAUSED if is_preempted else ExperimentState.COMPLETED)


def _describe_fault(error: BaseException) -> str | None:
    cause: BaseException | None = error
    while cause is not None:  # a DataError may wrap a network error
        is_external = (
            isinstance(cause, _EXTERNAL_ERRORS) or type(cause).__name__ in _EXTERNAL_ERROR_NAMES
        )
        if is_external and not isinstance(cause, _CODE_ERRORS):
            return None
        cause = cause.__cause__ if isinstance(cause, DetcoreError) else None
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {frames[-1].filename}:{frames[-1].lineno}" if frames else name


def describe_cause(error: BaseException) -> str:
    """Return an error's class and the line of its message that names the cause.

    Usually that is the first line. If the first line only announces an error, it is followed by
    the first later line that is neither part of a traceback nor another announcement.

    Args:
        error: Any exception. For a `DetcoreError`, only the first line is returned.
    """
    lines = [line for line in strip_colours(str(error)).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    first = lines[0].strip()
    if isinstance(error, DetcoreError):
        return first
    if _ANNOUNCEMENT.fullmatch(first):
        following = (line.strip() for line in drop_traceback_frames(lines[1:]))
        cause = next((line for line in following if not _ANNOUNCEMENT.fullmatch(line)), None)
        if cause is not None:
            first = f"{first.rstrip('.:')}: {cause}"
    return f"{name}: {first}"


def strip_colours(text: str) -> str:
    """Return a message without the terminal colours that some frameworks add."""
    return _COLOUR.sub("", text)


def drop_traceback_frames(
    lines: Iterable[str], *, is_kept: Callable[[str], bool] = lambda path: False
) -> Iterator[str]:
    """Yield the lines of a message without the traceback frames in it.

    Args:
        lines: Lines of a message.
        is_kept: Whether to keep the frames of a file.
    """
    indent: int | None = None  # indentation of the frame that is being dropped
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            indent = None if is_kept(frame["path"]) else len(frame["indent"])
        elif indent is not None and line.strip() and _count_indent(line) <= indent:
            indent = None
        if indent is None:
            yield line


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
