"""What a search method implements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from detcore.search._messages import ExitReason

__all__ = ["Answer", "NewTrial", "SearchMethod", "SearchSetup", "TrainTo"]


@dataclasses.dataclass(frozen=True, slots=True)
class NewTrial:
    """Create the next trial and train it.

    Attributes:
        hparams: Its hyperparameters; JSON values.
        length: How far to train it first; > 0.
    """

    hparams: Mapping[str, Any]
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class TrainTo:
    """Train a trial on, up to a length since its beginning; None: no further."""

    trial: int
    length: int | None


Answer = NewTrial | TrainTo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetup:
    """What a search method is made from.

    Attributes:
        settings: The ``searcher`` section of the experiment file, as plain values.
        hyperparameters: The space to draw from, as in the experiment file.
        seed: ``reproducibility.experiment_seed``.
        max_length: ``searcher.max_length`` in its unit; 0 where the method has none.
    """

    settings: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    seed: int
    max_length: int

    @property
    def smaller_is_better(self) -> bool:
        """Whether lower values of the searcher's metric are better."""
        return bool(self.settings.get("smaller_is_better", True))

    def signed(self, metric: float) -> float:
        """Return a metric such that lower is better."""
        return metric if self.smaller_is_better else -metric


class SearchMethod(Protocol):
    """Decides which trials there are and how far each is trained.

    Made with a `SearchSetup`. What it answers must follow from the setup and the calls so far
    alone: no clock, no generator that is seeded otherwise, no order of a set. A search that is
    resumed makes the method anew and repeats all calls, and must get the same answers.

    Trials have indices in the order in which the method names them as `NewTrial`, from 0.

    A method that knows how far all of its trials train together may say so in an attribute
    ``planned_length`` (int, in the unit of ``searcher.max_length``). Its `progress` then counts
    the trials that are over, and the trials under way are added to it.
    """

    def start(self) -> Sequence[Answer]:
        """Return the first trials."""

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Take note of a metric, and say what to do next.

        Args:
            trial: The trial, which trained as far as it was told to.
            length: How far that was.
            metric: The searcher's metric, as it was reported.

        Returns:
            New trials, trials to train on, and trials to close. A trial that is not named stays
            open: it waits until a later answer names it.
        """

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Take note of a trial that ended before it was closed, and say what to do next."""

    def progress(self) -> float:
        """Return how much of the search is done, 0 to 1; for displays."""
