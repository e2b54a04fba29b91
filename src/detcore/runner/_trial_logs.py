"""Follow the logs of the trials that run: into the records, to observer plugins, to a display."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._log import SpoolDamagedError, read_records, spool_path
from detcore.database import LogFollower, answer_question

if TYPE_CHECKING:
    from detcore._log.events import Event
    from detcore.database import Database
    from detcore.delivery import LateDelivery
    from detcore.types import TrialInfo

__all__ = ["LogTail", "TrialLogs"]

_JOIN_S = 5.0


class TrialLogs:
    """Reads the logs of the trials that run, and answers their workers' questions.

    While its trials run, the runner is the only process that moves their reports into the records,
    apart from commands that read. The end of a trial takes its log in again.

    Args:
        database: The records; they may be unreachable at times.
        home: The home that holds the logs.
        delivery: Tells observer plugins.
    """

    def __init__(self, database: Database, home: Path, delivery: LateDelivery) -> None:
        self._database = database
        self._home = home
        self._delivery = delivery
        self._follower = LogFollower(database)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Stop following at the end of the block."""
        try:
            yield
        finally:
            self._follower.stop(_JOIN_S)

    def follow(self, info: TrialInfo) -> None:
        """Follow the log of a run that is about to start."""
        trial_dir = Path(info.trial_dir)
        self._follower.follow(spool_path(trial_dir, info.run_id))
        self._delivery.watch(trial_dir)

    def unfollow(self, info: TrialInfo) -> None:
        """Stop following a run whose workers are gone; the caller takes in the rest."""
        trial_dir = Path(info.trial_dir)
        self._follower.unfollow(spool_path(trial_dir, info.run_id))
        self._delivery.unwatch(trial_dir)

    def answer(self, info: TrialInfo, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a worker's question about the records.

        Args:
            info: The trial of the worker.
            question: Its message: ``question``, ``number`` and ``fields``.
        """
        found = answer_question(
            self._database,
            self._home,
            info.trial_id,
            str(question["question"]),
            question["fields"],
        )
        return {"type": "answer", "number": question["number"], "answer": found}


class LogTail:
    """Reads the events that a log has got since the last look, for a display.

    A log that cannot be read has no events: its other followers report that.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._end = 0

    def read(self) -> Iterator[Event]:
        """Yield the new events; one that is being written comes at the next look."""
        if not self._has_grown():
            return
        with contextlib.suppress(SpoolDamagedError, OSError):
            for record in read_records(self._path, self._end):
                self._end = record.end
                if (event := record.event) is not None:
                    yield event

    def _has_grown(self) -> bool:
        try:
            return self._path.stat().st_size > self._end
        except OSError:
            return False
