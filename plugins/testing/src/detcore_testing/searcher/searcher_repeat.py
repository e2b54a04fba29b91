"""Search method clauses on repeatability: the same setup and events give the same answers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detcore.environment import child_environment
from detcore.search import Event, SearchSetup, Validated, event_to_json
from detcore_testing.hypothesis_settings import quick
from detcore_testing.searcher.searcher_access import SOME_FAIL, SearcherAccess
from detcore_testing.searcher.searcher_child import pass_event, pass_events
from detcore_testing.suite_clauses import clause, expect_equal, shorten, unchanged_process

_CHILD_TIMEOUT_S = 120.0
_ENVIRONMENTS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC"},
    {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "DETCORE_SUITE": "one variable more"},
)


class RepeatingClauses(SearcherAccess):
    """Clauses on replays, other processes, random generators and instances."""

    @clause(
        "replay-gives-same-answers",
        "a new method that receives the same events gives the same answers, after any number of "
        "events, whatever the clock and the global random state",
    )
    def test_replay_gives_same_answers(self) -> None:
        """Replay the first events to a new method, with other clocks and reseeded generators."""

        @quick(self.num_examples)
        @given(
            setup=st.sampled_from(self.setups()), seed=st.integers(0, 2**32 - 1),
            part=st.floats(0, 1), fails=st.booleans(),
        )  # fmt: skip
        def check_replay(setup: SearchSetup, seed: int, part: float, fails: bool) -> None:
            search = self.simulate(setup, seed=seed, failing=SOME_FAIL if fails else None)
            num_events = int(part * len(search.events))
            random.seed(seed)
            np.random.seed(seed)
            with _shift_clocks():
                answers = pass_events(self.make(setup), search.events[:num_events])
            _check_same(answers, search.answers[: num_events + 1], "in a replay")

        states = random.getstate(), np.random.get_state()
        try:
            check_replay()
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    @clause(
        "process-state-is-unchanged",
        "the method starts no threads, writes no files in the working directory, and changes no "
        "environment variables and no global random generators",
    )
    def test_process_state_is_unchanged(self, tmp_path: Path) -> None:
        """Run searches in an empty directory."""
        for setup in self.setups():
            self.simulate(setup)  # create objects that all searches share

        home, num_threads = Path.cwd(), threading.active_count()
        os.chdir(tmp_path)
        try:
            with unchanged_process():
                for setup in self.setups():
                    for _ in range(3):
                        self.simulate(setup, failing=SOME_FAIL)
        finally:
            os.chdir(home)
        expect_equal(list(tmp_path.rglob("*")), [], "the files in the working directory")
        num_extra = threading.active_count() - num_threads
        assert num_extra < 3, f"three searches left {num_extra} threads"

    @clause(
        "answers-do-not-depend-on-process",
        "answers do not depend on PYTHONHASHSEED, environment variables or the process",
    )
    def test_answers_do_not_depend_on_process(self) -> None:
        """Replay searches in processes with other hash seeds."""
        searches = []
        for setup in self.setups():
            events = self.simulate(setup, seed=3, failing=SOME_FAIL).events
            searches.append(
                {"setup": dataclasses.asdict(setup), "events": list(map(event_to_json, events))}
            )
        request = json.dumps({"target": self.target(), "searches": searches})
        first, second = (_run_in_child(request, env).splitlines() for env in _ENVIRONMENTS)
        _check_same(first, second, "in another process")

    @clause(
        "instances-are-independent",
        "two concurrent searches behave as each of them does alone",
    )
    def test_instances_are_independent(self) -> None:
        """Interleave two searches."""
        for setup in self.setups():
            searches = [
                self.simulate(setup, seed=1, failing=SOME_FAIL),
                self.simulate(setup, seed=2),
            ]
            methods = [self.make(setup), self.make(setup)]
            answers = [[list(method.start())] for method in methods]
            for index in range(max(len(search.events) for search in searches)):
                for number, search in enumerate(searches):
                    if index < len(search.events):
                        answer = list(pass_event(methods[number], search.events[index]))
                        answers[number].append(answer)
            for number, search in enumerate(searches):
                _check_same(answers[number], search.answers, "in a concurrent search")

    @clause(
        "smaller-is-better-is-respected",
        "negating all metrics and smaller_is_better gives the same answers",
        capability="smaller-is-better",
    )
    def test_smaller_is_better_is_respected(self) -> None:
        """Negate all metrics and smaller_is_better."""
        for setup in self.setups():
            inverted = dataclasses.replace(
                setup,
                settings={**setup.settings, "smaller_is_better": not setup.smaller_is_better},
            )
            for seed in range(3):
                search = self.simulate(setup, seed=seed)
                events: list[Event] = [
                    dataclasses.replace(event, metric=-event.metric)
                    if isinstance(event, Validated) else event
                    for event in search.events
                ]  # fmt: skip
                answers = pass_events(self.make(inverted), events)
                _check_same(answers, search.answers, "with all metrics negated")


@contextlib.contextmanager
def _shift_clocks() -> Iterator[None]:
    """Move the clocks by years, and by a day between two readings."""
    count = itertools.count(1)

    def shift(now: float) -> Callable[[], float]:
        return lambda: now + 1e8 + 1e5 * next(count)

    def to_ns(clock: Callable[[], float]) -> Callable[[], int]:
        return lambda: int(clock() * 1e9)

    with contextlib.ExitStack() as stack:
        for name in ("time", "monotonic", "perf_counter", "process_time"):
            clock = shift(getattr(time, name)())
            stack.enter_context(mock.patch.object(time, name, clock))
            stack.enter_context(mock.patch.object(time, f"{name}_ns", to_ns(clock)))
        yield


def _check_same(answers: Sequence[Any], expected_answers: Sequence[Any], when: str) -> None:
    for index, (answer, expected) in enumerate(zip(answers, expected_answers, strict=True)):
        if answer != expected:
            raise AssertionError(
                f"the answer to event {index} differs {when}: {shorten(answer)}; expected "
                f"{shorten(expected)}"
            )


def _run_in_child(request: str, variables: Mapping[str, str]) -> str:
    """Run searches in a process with other environment variables, and return the answers."""
    path = os.pathsep.join(filter(None, sys.path))
    child = subprocess.run(
        [sys.executable, "-m", "detcore_testing.searcher.searcher_child"],
        input=request, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=False,
        env=child_environment({"PYTHONPATH": path, **variables}),
    )  # fmt: skip
    assert not child.returncode, f"the method fails in another process:\n{child.stderr[-2000:]}"
    return child.stdout
