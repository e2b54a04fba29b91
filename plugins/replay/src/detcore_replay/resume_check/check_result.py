"""The commands of a check, and its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from detcore_replay.resume_check.scratch_runs import Command


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The commands and kills of a check.

    Attributes:
        start: The command that starts the program.
        resume: The command that resumes it.
        kill_after: Seconds between the start of each run and its kill; empty: chosen later.
        num_kills: Number of kills.
    """

    start: Command
    resume: Command
    kill_after: Sequence[float]
    num_kills: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of ``detcore check-resume``.

    Attributes:
        seconds: Duration of the uninterrupted run, and of the killed and resumed run.
        kills: For each kill, the seconds since the start of its run.
        compared: The compared values, as lines.
        difference: The first difference, or "".
        details: More about the difference, as lines.
        notes: Limitations of the result.
    """

    seconds: tuple[float, float] = (0.0, 0.0)
    kills: tuple[float, ...] = ()
    compared: tuple[str, ...] = ()
    difference: str = ""
    details: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all compared values are equal."""
        return not self.difference


def format_counts(**counts: int) -> str:
    """Return the counts that are not 0, such as "3 steps and 1 report"."""
    words = [f"{count} {noun}{'s' * (count != 1)}" for noun, count in counts.items() if count]
    return " and ".join([*([", ".join(words[:-1])] if words[:-1] else []), *words[-1:]])
