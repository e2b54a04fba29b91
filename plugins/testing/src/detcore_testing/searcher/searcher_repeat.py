"""Clauses for search methods: the same setup and events give the same answers, always."""

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

_CHILD_S = 120.0
_OTHERS = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC"},
    {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "DETCORE_SUITE": "one variable more"},
)


class RepeatingClauses(SearcherAccess):
    """Replays, other processes, other generators, other instances."""

    @clause(
        "replay-gives-same-answers",
        "a new method that receives the same events gives the same answers, after any number of "
        "events, whatever the clock and the global random state",
    )
    def test_replay_gives_same_answers(self) -> None:
        """Replay the first events to a new method, years later, with generators seeded anew."""

        @quick(self.num_examples)
        @given(
            setup=st.sampled_from(self.setups()), seed=st.integers(0, 2**32),
            part=st.floats(0, 1), fails=st.booleans(),
        )  # fmt: skip
        def goes_on(setup: SearchSetup, seed: int, part: float, fails: bool) -> None:
            whole = self.simulate(setup, seed=seed, failing=SOME_FAIL if fails else None)
            cut = int(part * len(whole.events))
            random.seed(seed)
            np.random.seed(seed)
            with _later():
                again = pass_events(self.make(setup), whole.events[:cut])
            _expect_same(again, whole.answers[: cut + 1], "after a cut")

        states = random.getstate(), np.random.get_state()
        try:
            goes_on()
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    @clause(
        "process-state-is-unchanged",
        "the method starts no threads, writes no files in the working directory, and changes no "
        "environment variables and no global random generators",
    )
    def test_process_state_is_unchanged(self, tmp_path: Path) -> None:
        """Run searches in an empty folder."""
        for setup in self.setups():
            self.simulate(setup)  # until there is what all searches share

        home, num_threads = Path.cwd(), threading.active_count()
        os.chdir(tmp_path)
        try:
            with unchanged_process():
                for setup in self.setups():
                    for _ in range(3):
                        self.simulate(setup, failing=SOME_FAIL)
        finally:
            os.chdir(home)
        expect_equal(list(tmp_path.rglob("*")), [], "the files where it ran")
        more = threading.active_count() - num_threads
        assert more < 3, f"three searches left {more} threads"

    @clause(
        "answers-do-not-depend-on-process",
        "answers do not depend on PYTHONHASHSEED, environment variables or the process",
    )
    def test_answers_do_not_depend_on_process(self) -> None:
        """Replay searches in processes with other hash seeds."""
        told = []
        for setup in self.setups():
            whole = self.simulate(setup, seed=3, failing=SOME_FAIL)
            told.append({"setup": dataclasses.asdict(setup),
                         "events": [event_to_json(event) for event in whole.events]})  # fmt: skip
        text = json.dumps({"target": self.target(), "searches": told})
        one, other = (_answer_in_child(text, variables).splitlines() for variables in _OTHERS)
        _expect_same(one, other, "in another process")

    @clause(
        "instances-are-independent",
        "two concurrent searches behave as each of them does alone",
    )
    def test_instances_are_independent(self) -> None:
        """Interleave two searches."""
        for setup in self.setups():
            first = self.simulate(setup, seed=1, failing=SOME_FAIL)
            second = self.simulate(setup, seed=2)
            one, other = self.make(setup), self.make(setup)
            found = ([list(one.start())], [list(other.start())])
            for index in range(max(len(first.events), len(second.events))):
                for made, search, answers in (
                    (one, first, found[0]), (other, second, found[1])
                ):  # fmt: skip
                    if index < len(search.events):
                        answers.append(list(pass_event(made, search.events[index])))
            _expect_same(found[0], first.answers, "beside another search")
            _expect_same(found[1], second.answers, "beside another search")

    @clause(
        "smaller-is-better-is-respected",
        "negating all metrics and smaller_is_better gives the same answers",
        capability="smaller-is-better",
    )
    def test_smaller_is_better_is_respected(self) -> None:
        """Turn the signs."""
        for setup in self.setups():
            turned = dataclasses.replace(
                setup,
                settings={**setup.settings, "smaller_is_better": not setup.smaller_is_better},
            )
            for seed in range(3):
                whole = self.simulate(setup, seed=seed)
                events: list[Event] = [
                    dataclasses.replace(event, metric=-event.metric)
                    if isinstance(event, Validated) else event
                    for event in whole.events
                ]  # fmt: skip
                found = pass_events(self.make(turned), events)
                _expect_same(found, whole.answers, "with all signs turned")


@contextlib.contextmanager
def _later() -> Iterator[None]:
    """Let it be years later for a block, and let time fly: days pass between two looks."""
    count = itertools.count(1)

    def shifted(now: float) -> Callable[[], float]:
        return lambda: now + 1e8 + 1e5 * next(count)

    def in_ns(clock: Callable[[], float]) -> Callable[[], int]:
        return lambda: int(clock() * 1e9)

    with contextlib.ExitStack() as stack:
        for name in ("time", "monotonic", "perf_counter", "process_time"):
            clock = shifted(getattr(time, name)())
            stack.enter_context(mock.patch.object(time, name, clock))
            stack.enter_context(mock.patch.object(time, f"{name}_ns", in_ns(clock)))
        yield


def _expect_same(found: Sequence[Any], wanted: Sequence[Any], when: str) -> None:
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one != other:
            raise AssertionError(
                f"it answered otherwise {when}: to event {index} {shorten(one)}; before: "
                f"{shorten(other)}"
            )


def _answer_in_child(text: str, variables: Mapping[str, str]) -> str:
    """Run searches again in a process with other variables; return its answers."""
    path = os.pathsep.join(filter(None, sys.path))
    child = subprocess.run(
        [sys.executable, "-m", "detcore_testing.searcher.searcher_child"],
        input=text, capture_output=True, text=True, timeout=_CHILD_S, check=False,
        env=child_environment({"PYTHONPATH": path, **variables}),
    )  # fmt: skip
    assert not child.returncode, f"the method fails in another process:\n{child.stderr[-2000:]}"
    return child.stdout
