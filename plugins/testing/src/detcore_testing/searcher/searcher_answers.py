"""Clauses for search methods: the valid answers, and the end of the search."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from detcore.config import ranges
from detcore.errors import SearchError
from detcore.search import ExitReason, SearchSetup
from detcore_testing.hypothesis_settings import quick
from detcore_testing.searcher.searcher_access import SOME_FAIL, SearcherAccess
from detcore_testing.suite_clauses import clause, expect_equal, shorten

_NEARLY = 1e-9
_HUGE = 1.7e308
_SEVERAL = 4


class AnsweringClauses(SearcherAccess):
    """Trials, lengths, hyperparameters, progress and the end of the search."""

    @clause(
        "answers-are-valid",
        "start returns a new trial, every answer is a list or tuple of NewTrial and TrainTo, with "
        "growing whole numbers above 0, for trials that have not ended, and the setup is not "
        "changed",
    )
    def test_answers_are_valid(self) -> None:
        """Look at every answer, where no trial fails and where some do."""
        self.several()

    @clause("search-ends", "every trial is closed in the end, whatever the order of reports")
    def test_search_ends(self) -> None:
        """Let hypothesis choose orders, and which trials fail."""
        reasons = st.dictionaries(st.sampled_from(list(ExitReason)), st.floats(0, 0.4))

        @quick(self.num_examples)
        @given(setup=st.sampled_from(self.setups()), seed=st.integers(0, 2**32), failing=reasons)
        def ends(setup: SearchSetup, seed: int, failing: dict[ExitReason, float]) -> None:
            self.simulate(setup, seed=seed, failing=failing)

        ends()

    @clause(
        "search-survives-failures",
        "the search ends even if every trial fails or is stopped, and raises SearchError if all "
        "trials reject their hyperparameters",
    )
    def test_search_survives_failures(self) -> None:
        """Let all trials end in each way, and then most of them."""
        for setup, reason in itertools.product(self.setups(), ExitReason):
            is_rejection = reason is ExitReason.INVALID_HP
            self.simulate(setup, failing={reason: 0.5 if is_rejection else 0.8})
            with contextlib.suppress(*[SearchError] * is_rejection):
                self.simulate(setup, failing={reason: 1.0})

    @clause(
        "hyperparameters-are-in-the-space",
        "each trial has every hyperparameter, within its range, as plain JSON values without NaN",
    )
    def test_hyperparameters_are_in_the_space(self) -> None:
        """Compare each trial's with the space, and write them as JSON."""
        for setup, search in self.several():
            for trial in search.trials:
                for fault in _outside(setup.hyperparameters, trial.hparams):
                    raise AssertionError(f"{fault}: {shorten(trial.hparams)}")
                json.dumps(trial.hparams, allow_nan=False)
                _expect_plain(trial.hparams)

    @clause(
        "seed-changes-results",
        "where the space offers a choice, hyperparameters differ between trials and between seeds",
        capability="draws",
    )
    def test_seed_changes_results(self) -> None:
        """Start searches with some seeds."""
        for setup in filter(_has_choice, self.setups()):
            searches = set()
            for seed in range(setup.seed, setup.seed + _SEVERAL):
                search = self.simulate(dataclasses.replace(setup, seed=seed))
                drawn = [json.dumps(trial.hparams, default=str) for trial in search.trials]
                assert len(drawn) < _SEVERAL or len({*drawn}) > 1, (
                    f"all {len(drawn)} trials have the same hyperparameters: {drawn[0]}\n"
                    "Decline 'draws' if nothing is drawn."
                )
                searches.add(str(drawn))
            assert len(searches) > 1, (
                f"{_SEVERAL} seeds lead to the same hyperparameters: {shorten(searches)}\n"
                "Decline 'draws' if nothing is drawn."
            )

    @clause("max-length-is-respected", "no trial trains beyond max_length", capability="max-length")
    def test_max_length_is_respected(self) -> None:
        """Look at how far each trial was trained."""
        for setup, search in self.several():
            longest = max((trial.length for trial in search.trials), default=0)
            assert longest <= setup.max_length, f"a trial trains to {longest} of {setup.max_length}"

    @clause(
        "max-trials-is-respected",
        "there are exactly max_trials trials if none fails, and at least as many if some fail",
        capability="max-trials",
    )
    def test_max_trials_is_respected(self) -> None:
        """Count the trials."""
        for setup in self.setups():
            wanted = setup.settings.get("max_trials")
            if wanted is not None:
                expect_equal(len(self.simulate(setup).trials), wanted, "the number of trials")
                for reason in (ExitReason.ERRORED, ExitReason.STOPPED):
                    found = len(self.simulate(setup, failing={reason: 0.3}).trials)
                    assert found >= wanted, f"{found} trials, not {wanted}, where some end {reason}"

    @clause(
        "max-concurrent-is-respected",
        "at most max_concurrent_trials trials train concurrently",
        capability="max-concurrent",
    )
    def test_max_concurrent_is_respected(self) -> None:
        """Count the trials that train at one time."""
        for setup, search in self.several():
            most = setup.settings.get("max_concurrent_trials") or math.inf
            assert search.most_at_once <= most, (
                f"{search.most_at_once} trials train at once, not {most}"
            )

    @clause(
        "progress-reaches-1",
        "progress is a number from 0 to 1, never decreases while no trial fails, and is 1 when the "
        "search has ended, because failed and rejected trials count or are replaced",
    )
    def test_progress_reaches_1(self) -> None:
        """Look at each number, and compare it with the one before."""
        for setup, seed, reason in itertools.product(
            self.setups(), range(3), (None, ExitReason.ERRORED, ExitReason.INVALID_HP)
        ):
            failing = {} if reason is None else {reason: 0.3}
            told = self.simulate(setup, seed=seed, failing=failing).progress
            for number in told:
                is_part = isinstance(number, (int, float)) and -_NEARLY <= number <= 1 + _NEARLY
                assert is_part, f"progress is {number!r}"
            for before, after in itertools.pairwise(told):
                assert reason or after >= before - _NEARLY, f"it falls from {before} to {after}"
            assert told[0] < 1 - _NEARLY, "progress is 1 before any trial was trained"
            where = f", where some trials end with {reason}" if reason else ""
            assert told[-1] > 1 - _NEARLY, f"progress is {told[-1]} at the end{where}"

    @clause("finite-metrics-are-accepted", "huge, tiny, negative and equal metrics are accepted")
    def test_finite_metrics_are_accepted(self) -> None:
        """Report extreme metrics."""

        def spread(hparams: Mapping[str, Any], length: int) -> float:
            number = self.metric(hparams, length)
            return (_HUGE, -_HUGE, 5e-324, 0.0, -0.0)[int(number * 1000) % 5]

        for setup in self.setups():
            for metric in (spread, lambda hparams, length: 0.0):
                self.simulate(setup, metric=metric)
                self.simulate(setup, metric=metric, failing=SOME_FAIL)


def _has_choice(setup: SearchSetup) -> bool:
    """Whether there is a range of numbers to draw from, and not just one."""
    return any(
        value["type"] in ("double", "log", "int") and value["minval"] < value["maxval"]
        for _, value in ranges(setup.hyperparameters)
    )


def _expect_plain(value: object) -> None:
    if isinstance(value, Mapping):
        for name, each in value.items():
            assert type(name) is str, f"the name {name!r} is a {type(name).__name__}"
            _expect_plain(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _expect_plain(each)
    else:
        plain = (bool, int, float, str, type(None))
        assert type(value) in plain, f"{value!r} is a {type(value).__name__}"


def _outside(space: Mapping[str, Any], hparams: Mapping[str, Any]) -> list[str]:
    """Return descriptions of the faults in hyperparameters."""
    found = _missing(space, hparams, "")
    for place, value in ranges(space):
        given_value: Any = hparams
        for name in place:
            given_value = given_value.get(name) if isinstance(given_value, Mapping) else None
        if not _is_within(value, given_value):
            name = ".".join(map(str, place))
            found.append(f"{name} is {given_value!r}, which is outside of {value}")
    return found


def _missing(space: Mapping[str, Any], hparams: Mapping[str, Any], place: str) -> list[str]:
    found = []
    for name in sorted({*space, *hparams}):
        value = space.get(name)
        if name not in space or name not in hparams:
            found.append(f"{place}{name} is {'not asked for' if name not in space else 'missing'}")
        elif isinstance(value, Mapping) and "type" not in value:
            inner = hparams[name] if isinstance(hparams[name], Mapping) else {}
            found += _missing(value, inner, f"{place}{name}.")
        elif not isinstance(value, Mapping) and hparams[name] != value:
            found.append(f"{place}{name} is {hparams[name]!r}; it is {value!r} for all")
    return found


def _is_within(value: Mapping[str, Any], drawn: Any) -> bool:
    kind = value["type"]
    if kind == "const":
        return bool(drawn == value["val"])
    if kind == "categorical":
        return any(drawn == each and type(drawn) is type(each) for each in value["vals"])
    low, high = value["minval"], value["maxval"]
    if isinstance(drawn, bool) or not isinstance(drawn, (int, float)):
        return False
    if kind == "int":
        return isinstance(drawn, int) and low <= drawn <= high
    if kind == "log":
        low, high = value["base"] ** low, value["base"] ** high
    slack = _NEARLY * max(abs(low), abs(high), 1e-300)
    return bool(low - slack <= drawn <= high + slack)
