"""Search method clauses on valid answers and on the end of the search."""

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

_TOLERANCE = 1e-9
_HUGE = 1.7e308
_NUM_SEEDS = 4


class AnsweringClauses(SearcherAccess):
    """Clauses on trials, lengths, hyperparameters, progress and the end of the search."""

    @clause(
        "answers-are-valid",
        "start returns a new trial, every answer is a list or tuple of NewTrial and TrainTo, with "
        "growing whole numbers above 0, for trials that have not ended, and the setup is not "
        "changed",
    )
    def test_answers_are_valid(self) -> None:
        """Check every answer, without failures and with some failing trials."""
        self.simulate_all()

    @clause("search-ends", "every trial is closed in the end, whatever the order of reports")
    def test_search_ends(self) -> None:
        """Let hypothesis choose the order of reports and the failing trials."""
        reasons = st.dictionaries(st.sampled_from(list(ExitReason)), st.floats(0, 0.4))

        @quick(self.num_examples)
        @given(setup=st.sampled_from(self.setups()), seed=st.integers(0, 2**32), failing=reasons)
        def check_end(setup: SearchSetup, seed: int, failing: dict[ExitReason, float]) -> None:
            self.simulate(setup, seed=seed, failing=failing)

        check_end()

    @clause(
        "search-survives-failures",
        "the search ends even if every trial fails or is stopped, and raises SearchError if all "
        "trials reject their hyperparameters",
    )
    def test_search_survives_failures(self) -> None:
        """Let most trials, and then all trials, exit for each reason."""
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
        """Compare the hyperparameters of each trial with the space, and encode them as JSON."""
        for setup, search in self.simulate_all():
            for trial in search.trials:
                for fault in _find_space_faults(setup.hyperparameters, trial.hparams):
                    raise AssertionError(f"{fault}: {shorten(trial.hparams)}")
                json.dumps(trial.hparams, allow_nan=False)
                _check_plain(trial.hparams)

    @clause(
        "seed-changes-results",
        "where the space offers a choice, hyperparameters differ between trials and between seeds",
        capability="draws",
    )
    def test_seed_changes_results(self) -> None:
        """Run searches with several seeds."""
        for setup in filter(_has_choice, self.setups()):
            searches = set()
            for seed in range(setup.seed, setup.seed + _NUM_SEEDS):
                search = self.simulate(dataclasses.replace(setup, seed=seed))
                hparams = [json.dumps(trial.hparams, default=str) for trial in search.trials]
                assert len(hparams) < _NUM_SEEDS or len({*hparams}) > 1, (
                    f"all {len(hparams)} trials have the same hyperparameters: {hparams[0]}\n"
                    "If the method is not random, decline 'draws'."
                )
                searches.add(str(hparams))
            assert len(searches) > 1, (
                f"{_NUM_SEEDS} seeds lead to the same hyperparameters: {shorten(searches)}\n"
                "If the method is not random, decline 'draws'."
            )

    @clause("max-length-is-respected", "no trial trains beyond max_length", capability="max-length")
    def test_max_length_is_respected(self) -> None:
        """Compare the training length of each trial with max_length."""
        for setup, search in self.simulate_all():
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
            expected = setup.settings.get("max_trials")
            if expected is not None:
                expect_equal(len(self.simulate(setup).trials), expected, "the number of trials")
                for reason in (ExitReason.ERRORED, ExitReason.STOPPED):
                    count = len(self.simulate(setup, failing={reason: 0.3}).trials)
                    assert count >= expected, f"{count} of {expected} trials if some end {reason}"

    @clause(
        "max-concurrent-is-respected",
        "at most max_concurrent_trials trials train concurrently",
        capability="max-concurrent",
    )
    def test_max_concurrent_is_respected(self) -> None:
        """Count the concurrent trials."""
        for setup, search in self.simulate_all():
            limit = setup.settings.get("max_concurrent_trials") or math.inf
            assert search.max_concurrent <= limit, (
                f"{search.max_concurrent} trials train concurrently; the limit is {limit}"
            )

    @clause(
        "progress-reaches-1",
        "progress is a number from 0 to 1, never decreases while no trial fails, and is 1 when the "
        "search has ended, because failed and rejected trials count or are replaced",
    )
    def test_progress_reaches_1(self) -> None:
        """Check each progress value and compare it with the previous value."""
        for setup, seed, reason in itertools.product(
            self.setups(), range(3), (None, ExitReason.ERRORED, ExitReason.INVALID_HP)
        ):
            failing = {} if reason is None else {reason: 0.3}
            progress = self.simulate(setup, seed=seed, failing=failing).progress
            for number in progress:
                is_part = (
                    isinstance(number, (int, float)) and -_TOLERANCE <= number <= 1 + _TOLERANCE
                )
                assert is_part, f"progress is {number!r}"
            for before, after in itertools.pairwise(progress):
                assert reason or after >= before - _TOLERANCE, (
                    f"progress falls from {before} to {after}"
                )
            assert progress[0] < 1 - _TOLERANCE, "progress is 1 before any trial has trained"
            condition = f" if some trials end with {reason}" if reason else ""
            assert progress[-1] > 1 - _TOLERANCE, f"progress ends at {progress[-1]}{condition}"

    @clause("finite-metrics-are-accepted", "huge, tiny, negative and equal metrics are accepted")
    def test_finite_metrics_are_accepted(self) -> None:
        """Report extreme metrics."""

        def choose_extreme(hparams: Mapping[str, Any], length: int) -> float:
            number = self.metric(hparams, length)
            return (_HUGE, -_HUGE, 5e-324, 0.0, -0.0)[int(number * 1000) % 5]

        for setup in self.setups():
            for metric in (choose_extreme, lambda hparams, length: 0.0):
                self.simulate(setup, metric=metric)
                self.simulate(setup, metric=metric, failing=SOME_FAIL)


def _has_choice(setup: SearchSetup) -> bool:
    """Whether the space has a range with more than one number."""
    return any(
        value["type"] in ("double", "log", "int") and value["minval"] < value["maxval"]
        for _, value in ranges(setup.hyperparameters)
    )


def _check_plain(value: object) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            assert type(name) is str, f"the name {name!r} is a {type(name).__name__}"
            _check_plain(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item)
    else:
        plain_types = (bool, int, float, str, type(None))
        assert type(value) in plain_types, f"{value!r} is a {type(value).__name__}"


def _find_space_faults(space: Mapping[str, Any], hparams: Mapping[str, Any]) -> list[str]:
    """Return the faults in a trial's hyperparameters."""
    faults = _find_name_faults(space, hparams, "")
    for path, value in ranges(space):
        hparam: Any = hparams
        for name in path:
            hparam = hparam.get(name) if isinstance(hparam, Mapping) else None
        if not _is_within(value, hparam):
            name = ".".join(map(str, path))
            faults.append(f"{name} is {hparam!r}, outside the range {value}")
    return faults


def _find_name_faults(
    space: Mapping[str, Any], hparams: Mapping[str, Any], prefix: str
) -> list[str]:
    faults = []
    for name in sorted({*space, *hparams}):
        value = space.get(name)
        if name not in space or name not in hparams:
            faults.append(f"{prefix}{name} is {'unknown' if name not in space else 'missing'}")
        elif isinstance(value, Mapping) and "type" not in value:
            group = hparams[name] if isinstance(hparams[name], Mapping) else {}
            faults += _find_name_faults(value, group, f"{prefix}{name}.")
        elif not isinstance(value, Mapping) and hparams[name] != value:
            faults.append(f"{prefix}{name} is {hparams[name]!r}, not the constant {value!r}")
    return faults


def _is_within(value: Mapping[str, Any], hparam: Any) -> bool:
    kind = value["type"]
    if kind == "const":
        return bool(hparam == value["val"])
    if kind == "categorical":
        return any(hparam == item and type(hparam) is type(item) for item in value["vals"])
    low, high = value["minval"], value["maxval"]
    if isinstance(hparam, bool) or not isinstance(hparam, (int, float)):
        return False
    if kind == "int":
        return isinstance(hparam, int) and low <= hparam <= high
    if kind == "log":
        low, high = value["base"] ** low, value["base"] ** high
    slack = _TOLERANCE * max(abs(low), abs(high), 1e-300)
    return bool(low - slack <= hparam <= high + slack)
