"""Third-party search methods: a working method and methods with faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from detcore.search import Answer, ExitReason, NewTrial, SearchSetup, TrainTo

__all__ = ["Broken", "Doubling", "DoublingSettings", "Hollow", "Moody"]


class DoublingSettings(BaseModel):
    max_trials: int = Field(ge=1)


class Doubling:
    """Runs trials one after another, each twice as long as the previous trial."""

    def __init__(self, setup: SearchSetup) -> None:
        self._left = int(setup.settings["max_trials"])
        self._total = self._left
        self._length = setup.max_length

    def start(self) -> Sequence[Answer]:
        return self._next()

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        return [TrainTo(trial, None), *self._next()]

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        return self._next()

    def progress(self) -> float:
        return 1 - self._left / self._total

    def _next(self) -> Sequence[Answer]:
        if not self._left:
            return []
        self._left -= 1
        self._length *= 2
        return [NewTrial({"rate": 0.5, "width": self._left + 1}, self._length // 2)]


class Moody(Doubling):
    """Fails when its second trial reports, if the code directory contains a file ``mood``."""

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self._mood = Path(setup.settings["mood"])

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        if trial == 1 and self._mood.exists():
            raise ZeroDivisionError("not in the mood")
        return super().validated(trial, length, metric)


class Hollow:
    """An incomplete search method."""

    def __init__(self, setup: SearchSetup) -> None:
        self.start = list
        self.validated = list


class Broken:
    """A search method that cannot be created."""

    def __init__(self) -> None:
        pass
