"""Follow the logs of the trials that run: into the records, and to observer plugins."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._log import SpoolDamagedError, spool_path
from detcore.database import answer_question, ingest_run
from detcore.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.database import Database, Position
    from detcore.delivery import LateDelivery
    from detcore.types import TrialInfo

__all__ = ["LogFollower"]

_INTERVAL_S = 0.25
_RETRY_S = 1.0
_JOIN_S = 5.0


class LogFollower:
    """Moves what the workers of all trials report into the records, in one thread.

    The runner is the only process that does so while its trials run, apart from commands that
    read. Failures are retried: the logs keep everything, and the end of a trial takes its log in
    again. `delivery` tells observers of the same logs.

    Args:
        database: The records; they may be away at times.
        home: Where the logs are.
        delivery: Tells observer plugins.
    """

    def __init__(self, database: Database, home: Path, delivery: LateDelivery) -> None:
        self._database = database
        self._home = home
        self._delivery = delivery
        self._lock = threading.Lock()
        self._logs: dict[Path, Position | None] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="detcore-follower", daemon=True)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Follow during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            # It may wait for a database that is away; it is a daemon.
            self._thread.join(_JOIN_S)

    def follow(self, info: TrialInfo) -> None:
        """Follow the log of a run that is about to start."""
        trial_dir = Path(info.trial_dir)
        with self._lock:
            self._logs[spool_path(trial_dir, info.run_id)] = None
        self._delivery.watch(trial_dir)

    def unfollow(self, info: TrialInfo) -> None:
        """Stop to follow a run whose workers are gone; its caller takes in the rest."""
        trial_dir = Path(info.trial_dir)
        with self._lock:
            self._logs.pop(spool_path(trial_dir, info.run_id), None)
        self._delivery.unwatch(trial_dir)

    def answer(self, info: TrialInfo, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a worker's question about the records.

        Args:
            info: The trial that asks.
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

    def _run(self) -> None:
        wait_s = _INTERVAL_S
        while not self._is_over.wait(wait_s):
            wait_s = _INTERVAL_S
            with self._lock:
                logs = list(self._logs.items())
            for log, position in logs:
                try:
                    position = ingest_run(self._database, log, position)
                    with self._lock:
                        if log in self._logs:
                            self._logs[log] = position
                except (SpoolDamagedError, FileNotFoundError):
                    continue  # told where the trial's end takes it in
                except (DetcoreError, OSError):
                    wait_s = _RETRY_S
