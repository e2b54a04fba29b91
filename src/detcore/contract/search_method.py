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
    """Continue a trial up to a length since its start, or end its training if it is None."""

    trial: int
    length: int | None


Answer = NewTrial | TrainTo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetup:
    """Values from which a search method is created.

    Attributes:
        settings: The ``searcher`` section of the experiment file, as plain values.
        hyperparameters: The search space, as in the experiment file.
        seed: ``reproducibility.experiment_seed``.
        max_length: ``searcher.max_length`` in its unit; 0 if the method has no such setting.
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

    The class is called with a `SearchSetup`. Decisions must depend only on the setup and on the
    previous calls: not on a clock, on a random generator with another seed, or on the order of a
    set. Resuming a search creates a new method and repeats all calls, which must return the same
    decisions.

    The index of a trial is the number of `NewTrial` answers before its own.

    A method that knows the total training length of its trials may provide it in an attribute
    ``planned_length`` (int, in the unit of ``searcher.max_length``). Its `progress` then counts
    only finished trials, and detcore adds the progress of running trials.

    Example::

        >>> from detcore.search import NewTrial, TrainTo
        >>> class OneTrial:
        ...     def __init__(self, setup):
        ...         self.setup, self.is_over = setup, False
        ...     def start(self):
        ...         return [NewTrial(self.setup.hyperparameters, self.setup.max_length)]
        ...     def validated(self, trial, length, metric):
        ...         self.is_over = True
        ...         return [TrainTo(trial, None)]
        ...     def exited(self, trial, reason):
        ...         self.is_over = True
        ...         return []
        ...     def progress(self):
        ...         return float(self.is_over)
        >>> from detcore.search import SearchSetup
        >>> setup = SearchSetup(settings={}, hyperparameters={"lr": 0.1}, seed=0, max_length=5)
        >>> OneTrial(setup).start()
        [NewTrial(hparams={'lr': 0.1}, length=5)]
    """

    def start(self) -> Sequence[Answer]:
        """Return the first trials."""

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Record a metric, and return the next decisions.

        Args:
            trial: Index of the trial, which trained to its requested length.
            length: The requested length.
            metric: The searcher's metric, as reported.

        Returns:
            New trials, trials to continue, and trials to close. Other trials stay open and wait for
            a later answer.
        """

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Record a trial that ended before it was closed, and return the next decisions."""

    def progress(self) -> float:
        """Return the completed fraction of the search, 0 to 1; for displays."""
