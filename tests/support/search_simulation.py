"""Simulate a search without training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from detcore.search import (
    Close,
    Create,
    Event,
    Exited,
    ExitReason,
    Operation,
    Search,
    SearchMethod,
    SearchSetup,
    Train,
    Validated,
)

SPACE = {
    "rate": {"type": "log", "base": 10.0, "minval": -4.0, "maxval": -1.0},
    "layers": {"type": "int", "minval": 1, "maxval": 4},
    "optimizer": {
        "kind": {"type": "categorical", "vals": ["sgd", "adam"]},
        "momentum": {"type": "double", "minval": 0.0, "maxval": 0.9},
    },
    "global_batch_size": 32,
}


def setup(
    max_length: int = 64, *, seed: int = 7, space: Any = SPACE, **settings: Any
) -> SearchSetup:
    """Create the setup of a search method."""
    return SearchSetup(
        settings={"smaller_is_better": True, **settings},
        hyperparameters=space,
        seed=seed,
        max_length=max_length,
    )


ASHA: dict[str, Any] = {
    "mode": "standard",
    "divisor": 4.0,
    "max_rungs": 5,
    "bracket_rungs": [],
    "max_concurrent_trials": 16,
    "stop_once": False,
}


def asha(max_length: int = 1024, **settings: Any) -> SearchSetup:
    return setup(max_length, **{**ASHA, "max_trials": 100, **settings})


class Simulation:
    """Simulated trials that report in random order and sometimes fail.

    Args:
        method: Function that creates the search method.
        seed: Seed of the report order and of the failures.
        num_slots: Number of concurrent trials.
        failing: Fraction of reports replaced by exits.
        metric: Function from a trial and length to a metric.
    """

    def __init__(
        self,
        method: Callable[[], SearchMethod],
        *,
        seed: int = 0,
        failing: Mapping[ExitReason, float] | None = None,
        metric: Callable[[Mapping[str, Any], int], float] | None = None,
    ) -> None:
        self.search = Search(method(), seed=7)
        self._random = random.Random(seed)
        self._failing = failing or {}
        self._metric = metric or (lambda hparams, length: float(hparams["rate"]) + 1 / length)
        self._training: list[tuple[int, int]] = []
        self.operations: list[tuple[Operation, ...]] = []
        self.most_at_once = 0
        self._note(self.search.first)

    def run(self) -> Simulation:
        """Continue until the search is finished."""
        while self._training:
            place = self._random.randrange(len(self._training))
            trial, length = self._training.pop(place)
            self._note(self.search.apply(self._event(trial, length)))
        assert self.search.is_finished
        return self

    def lengths(self) -> list[int]:
        """Return the training length of each trial."""
        return [trial.length for trial in self.search.trials]

    def _event(self, trial: int, length: int) -> Event:
        for reason, part in self._failing.items():
            if self._random.random() < part:
                return Exited(trial, reason)
        return Validated(trial, length, self._metric(self.search.trials[trial].hparams, length))

    def _note(self, operations: Sequence[Operation]) -> None:
        self.operations.append(tuple(operations))
        self._training += [
            (operation.trial, operation.length)
            for operation in operations
            if isinstance(operation, Train)
        ]
        self.most_at_once = max(self.most_at_once, len(self._training))


def created(operations: Sequence[Sequence[Operation]]) -> Iterator[Create]:
    """Yield the trials created by operations."""
    for group in operations:
        yield from (operation for operation in group if isinstance(operation, Create))


def closed(operations: Sequence[Sequence[Operation]]) -> list[int]:
    """Return the trials closed by operations, in order."""
    return [
        operation.trial
        for group in operations
        for operation in group
        if isinstance(operation, Close)
    ]
