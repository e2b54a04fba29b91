"""Search methods that train every trial to the same length: single, random, grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from detcore.contract.errors import SearchError
from detcore.contract.search_method import Answer, ExitReason, NewTrial, SearchSetup, TrainTo
from detcore.search.sampling import grid_points, sample

# Without a limit, code that rejects all hyperparameters would be tried forever.
_MAX_INVALID_IN_A_ROW = 100


class InvalidTrialCounter:
    """Counts consecutive trials that rejected their hyperparameters."""

    def __init__(self) -> None:
        self._count = 0

    def record_accepted(self) -> None:
        """Record a trial that trained."""
        self._count = 0

    def record_rejected(self) -> None:
        """Record a trial that raised `InvalidHP`.

        Raises:
            SearchError: After too many such trials in a row.
        """
        self._count += 1
        if self._count >= _MAX_INVALID_IN_A_ROW:
            raise SearchError(
                f"{self._count} trials in a row rejected their hyperparameters (InvalidHP).\n"
                "Each was replaced, and no trial was accepted.\n"
                "Limit the ranges in the experiment file to values that the code accepts."
            )


class _Queue:
    """Trials that wait for a slot. Each starts when a running trial ends.

    Args:
        setup: The search.
        total: Number of trials, without replaced trials.
        draw: Returns the hyperparameters of the next trial, or None at the end.
        first_length: Length of each trial's first training; 0 for the full length.

    Attributes:
        planned_length: Total training length of all trials.
    """

    def __init__(
        self,
        setup: SearchSetup,
        total: int,
        draw: Callable[[], dict[str, Any] | None],
        *,
        first_length: int = 0,
    ) -> None:
        self._draw = draw
        self._length = first_length or setup.max_length
        self._limit = int(setup.settings.get("max_concurrent_trials", 0)) or total
        self._total = total
        self._num_ended = 0
        self.planned_length = total * setup.max_length

    def start(self) -> Sequence[Answer]:
        """Return as many trials as may run concurrently."""
        return [
            answer for _ in range(min(self._limit, self._total)) for answer in self._start_next()
        ]

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Close the trial, which has reached its full length, and start the next trial."""
        self._num_ended += 1
        return [TrainTo(trial, None), *self._start_next()]

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Start the next trial."""
        self._num_ended += 1
        return self._start_next()

    def progress(self) -> float:
        """Return the fraction of ended trials."""
        return self._num_ended / self._total

    def _start_next(self) -> list[Answer]:
        hparams = self._draw()
        return [] if hparams is None else [NewTrial(hparams, self._length)]


class ReplacingQueue(_Queue):
    """``max_trials`` trials, not counting replacements for rejected hyperparameters.

    Args:
        setup: The search.
        draw: Returns the hyperparameters of the next trial.
        first_length: Length of each trial's first training; 0 for the full length.
    """

    def __init__(
        self, setup: SearchSetup, draw: Callable[[], dict[str, Any]], *, first_length: int = 0
    ) -> None:
        self._num_left = int(setup.settings["max_trials"])
        self._invalid = InvalidTrialCounter()
        self._draw_hparams = draw
        super().__init__(setup, self._num_left, self._draw_if_left, first_length=first_length)

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Close the trial, and start the next trial."""
        self._invalid.record_accepted()
        return super().validated(trial, length, metric)

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Start the next trial, or a replacement if the trial rejected its hyperparameters."""
        if reason is ExitReason.INVALID_HP:
            self._invalid.record_rejected()
            self._num_left += 1
            self._num_ended -= 1
        return super().exited(trial, reason)

    def _draw_if_left(self) -> dict[str, Any] | None:
        if self._num_left == 0:
            return None
        self._num_left -= 1
        return self._draw_hparams()


class RandomSearch(ReplacingQueue):
    """Trials with hyperparameters drawn at random."""

    def __init__(self, setup: SearchSetup) -> None:
        indices = itertools.count()
        super().__init__(
            setup, lambda: sample(setup.hyperparameters, seed=setup.seed, index=next(indices))
        )


class SingleSearch(_Queue):
    """A single trial, which is not replaced."""

    def __init__(self, setup: SearchSetup) -> None:
        hparams = iter([sample(setup.hyperparameters, seed=setup.seed, index=0)])
        super().__init__(setup, 1, lambda: next(hparams, None))


class GridSearch(_Queue):
    """Every point of a grid, from the last to the first. Rejected points are skipped."""

    def __init__(self, setup: SearchSetup) -> None:
        points = grid_points(setup.hyperparameters)
        super().__init__(setup, len(points), lambda: points.pop() if points else None)
