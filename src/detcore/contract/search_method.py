"""Define the interface of search methods."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Answer", "ExitReason", "NewTrial", "SearchMethod", "SearchSetup", "TrainTo"]


class ExitReason(str, enum.Enum):
    """Why a trial ended before its search method closed it."""

    ERRORED = "errored"
    INVALID_HP = "invalid_hp"
    STOPPED = "stopped"


@dataclasses.dataclass(frozen=True, slots=True)
class NewTrial:
    """Create the next trial and train it.

    Attributes:
        hparams: Its hyperparameters; JSON values.
        length: Length of its first training; > 0.
    """

    hparams: Mapping[str, Any]
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class TrainTo:
    """Continue a trial up to a length since its start; None: end its training."""

    trial: int
    length: int | None


Answer = NewTrial | TrainTo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetup:
    """Values from which a search method is made.

    Attributes:
        settings: The ``searcher`` section of the experiment file, as plain values.
        hyperparameters: The space to draw from, as in the experiment file.
        seed: ``reproducibility.experiment_seed``.
        max_length: ``searcher.max_length`` in its unit; 0 if the method has none.
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
        """Return a metric for which lower is better."""
        return metric if self.smaller_is_better else -metric


class SearchMethod(Protocol):
    """Decides which trials to create and how far to train each of them.

    Made with a `SearchSetup`. Its decisions must follow from the setup and the calls so far alone:
    they must not depend on a clock, on a generator with another seed, or on the order of a set.
    Resuming a search makes a new method and repeats all calls, which must give the same decisions.

    Trials have indices in the order in which the method names them as `NewTrial`, from 0.

    A method that knows how far all of its trials train together may say so in an attribute
    ``planned_length`` (int, in the unit of ``searcher.max_length``). Its `progress` then counts
    the trials that are over, and the trials under way are added to it.
    """

    def start(self) -> Sequence[Answer]:
        """Return the first trials."""

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Record a metric, and return the next decisions.

        Args:
            trial: The trial, which trained to its requested length.
            length: That length.
            metric: The searcher's metric, as reported.

        Returns:
            New trials, trials to continue, and trials to close. A trial that is not named stays
            open: it waits until a later answer names it.
        """

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Record a trial that ended before it was closed, and return the next decisions."""

    def progress(self) -> float:
        """Return the completed fraction of the search, 0 to 1; for displays."""
