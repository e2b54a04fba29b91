"""No trial is lost and none runs twice, whatever happens in whatever order.

The supervisor decides; the world around it is `supervisor_model.World`. A violation names the
scenario and the moves that lead to it.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from supervisor_model import Scenario, Violation, explore, walk

from detcore.run import supervisor

# Each with all orders of moves; the smallest first.
SMALL = {
    "one trial": Scenario(
        method="single", faults=(("die", 1), ("crash", 1), ("signal", 1), ("control", 1))
    ),
    "one trial that fails": Scenario(
        method="single", scripts=((0, "fail"),), faults=(("die", 1), ("signal", 1), ("control", 1))
    ),
    "one that is certain to fail": Scenario(
        method="single", scripts=((0, "certain"),), faults=(("signal", 2), ("control", 1))
    ),
    "no restarts": Scenario(
        method="single", max_restarts=0, faults=(("die", 1), ("crash", 1), ("control", 1))
    ),
    "a script": Scenario(
        method="single",
        max_restarts=0,
        is_script=True,
        faults=(("die", 2), ("crash", 1), ("leave", 1), ("control", 1)),
    ),
    "a script with damage": Scenario(
        method="single",
        max_restarts=0,
        is_script=True,
        faults=(("die", 2), ("damage", 1), ("mistake", 1), ("signal", 1)),
    ),
    "the same mistake": Scenario(
        method="single", max_restarts=3, faults=(("die", 1), ("mistake", 3), ("crash", 1))
    ),
    "two trials in turn": Scenario(
        method="random-2", max_restarts=2, faults=(("die", 1), ("crash", 2))
    ),
    "one of two stops": Scenario(
        method="random-2", places=2, scripts=((1, "stop"),), faults=(("die", 1), ("control", 1))
    ),
    "halving with damage": Scenario(method="halving", faults=(("die", 1), ("damage", 2))),
    "halving": Scenario(method="halving", faults=(("die", 2), ("signal", 1))),
    "one of two is rejected": Scenario(
        method="random-2", places=2, scripts=((0, "reject"),), faults=(("die", 1), ("crash", 1))
    ),
    "two at once": Scenario(
        method="random-2", places=2, faults=(("die", 1), ("crash", 1), ("signal", 1))
    ),
    "one of two is canceled": Scenario(
        method="random-2", places=2, faults=(("die", 1), ("crash", 1), ("trial control", 1))
    ),
    "one of two leaves": Scenario(
        method="random-2", faults=(("die", 1), ("leave", 1), ("control", 1), ("trial control", 1))
    ),
    "the search fails": Scenario(
        method="random-2", places=2, faults=(("failure", 1), ("crash", 1), ("trial control", 1))
    ),
    "one of two is preempted": Scenario(
        method="random-2", places=2, faults=(("die", 1), ("preempt", 2))
    ),
    "a race of interrupts": Scenario(
        method="race-2", places=2, faults=(("signal", 2), ("damage", 1))
    ),
    "halving at once": Scenario(method="halving", places=2, faults=(("die", 1), ("crash", 1))),
    "a race": Scenario(method="race-2", places=2, faults=(("crash", 1),)),
    "a race of kills": Scenario(method="race-2", places=2, faults=(("die", 1),)),
}
# It takes as long as the twelve cheapest together; each run walks through it at random, below.
DEAR = {"halving at once"}
MANY = (
    ("die", 3), ("crash", 3), ("mistake", 2), ("damage", 1), ("leave", 1), ("preempt", 2),
    ("signal", 2), ("control", 1), ("trial control", 2), ("failure", 1),
)  # fmt: skip
# Scenarios for random orders of moves.
LARGE = {
    "in turn": Scenario(
        method="halving", max_restarts=3, faults=(("die", 4), ("crash", 3), ("signal", 2))
    ),
    "random": Scenario(method="random-5", places=2, max_restarts=2, faults=MANY),
    "scripted": Scenario(
        method="random-5",
        places=3,
        scripts=((0, "reject"), (2, "fail"), (4, "stop")),
        faults=MANY,
    ),
    "race": Scenario(method="race-4", places=3, max_restarts=2, faults=MANY),
    "halving": Scenario(method="halving", places=2, max_restarts=2, faults=MANY),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak if name in DEAR else ()) for name in SMALL],
)
def test_all_orders_of_a_small_run(name: str) -> None:
    assert explore(SMALL[name]) > 100


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(400, 3400), marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", LARGE)
def test_random_orders_of_a_large_run(name: str, seeds: range) -> None:
    for seed in seeds:
        walk(LARGE[name], seed)


# Mistakes in the supervisor: the original text, its replacement, and the model's finding.
MISTAKES = {
    "starts a script again whose checkpoint is damaged": (
        "ended.origin is None or plan.state.starts_once", "ended.origin is None",
    ),
    "completes a script that was interrupted behind its training": (
        "        return not state.starts_once\n", "        return True\n",
    ),
    "loses a script that was interrupted behind its training": (
        "        plan.run_again(index)\n        plan.change_trial(index, is_excluded=True)\n",
        "        plan.change_trial(index, is_excluded=True)\n",
    ),
    "does not run a script again that ended behind its training": (
        "        elif starts_once:\n", "        elif False:\n",
    ),
    "replies before the report is logged": (
        "        plan.advance_search(Validated(*report))\n",
        "        _reply_to_workers(plan, report.trial, report.length)\n"
        "        plan.advance_search(Validated(*report))\n",
    ),
    "records the end before it is logged": (
        "            self.add_actions(Advance(event, error))\n",
        "            _complete_event(self, event, error)\n"
        "            self.add_actions(Advance(event, error))\n",
    ),
    "keeps the place of workers that ended": (
        "free=(trial.place, *plan.state.free), ending", "ending",
    ),
    "forgets the place of a trial that waits": (
        "plan.set_fields(free=(*reserved, *free))", "plan.set_fields(free=tuple(free))",
    ),
    "gives the place of a trial that waits to another": (
        "reserved.append(place)\n", "free.insert(0, place)\n",
    ),
    "uses a place twice": ("place = free.pop(0)", "place = free[-1]"),
    "starts trials while it stops": (
        "() if state.is_stopping else (*state.again, *state.order)",
        "(*state.again, *state.order)",
    ),
    "starts a trial that runs": (
        "trial.place is not None or trial.is_excluded", "trial.is_excluded",
    ),
    "starts a trial again that made way": (
        "        plan.change_trial(index, is_excluded=True)\n"
        "        plan.record_state(index, plan.state.stopped_state)\n",
        "        plan.record_state(index, plan.state.stopped_state)\n",
    ),
    "starts a trial again that stops the search": (
        "            plan.change_trial(exited.trial, is_excluded=True)\n", "",
    ),
    "restarts once more": (
        "trial.num_restarts >= max_restarts", "trial.num_restarts > max_restarts",
    ),
    "does not count a restart": ("    plan.add_actions(CountRestart(index))\n", ""),
    "restarts while it stops": (
        "    if plan.state.is_stopping:\n        plan.change_trial(index, is_excl",
        "    if False:\n        plan.change_trial(index, is_excl",
    ),
    "restarts after a cancel": (
        "    elif trial.requested_end is not None:\n        _end_trial(plan, index)\n", "",
    ),
    "does not wait before a restart": ("if now < trial.starts_at", "if now < trial.starts_at - 99"),
    "loses a closed trial that crashed": (
        "    plan.run_again(index)\n    plan.change_trial(\n", "    plan.change_trial(\n",
    ),
    "loses a closed trial whose checkpoint is damaged": (
        "        plan.run_again(index)\n        plan.record_state(index, plan.state.stopped",
        "        plan.record_state(index, plan.state.stopped",
    ),
    "loses a closed trial whose code failed": (
        "            plan.run_again(index)\n"
        "            plan.record_state(index, TrialState.PAUSED)\n",
        "            plan.record_state(index, TrialState.PAUSED)\n",
    ),
    "runs a closed trial for ever": (
        "        plan.run_no_more(index)\n        plan.record_state(index, TrialState.COMPLETED)\n",
        "        plan.record_state(index, TrialState.COMPLETED)\n",
    ),
    "leaves a canceled trial as it is that failed after its report": (
        "index in plan.state.again or index == plan.state.ending", "index in plan.state.again",
    ),
    "leaves trials paused that are to run again in a canceled run": (
        "if not trial.is_closed or index in state.again:", "if not trial.is_closed:",
    ),
    "completes a run while a trial is to run again": (
        "for trial in state.trials) and not is_left", "for trial in state.trials)",
    ),
    "mistakes the interrupt of a trial that was notified of its end": (
        "place=place, was_notified_of_end=False", "place=place",
    ),
    "trains further while it stops": (
        "    if trains_on and not plan.state.is_stopping:\n", "    if trains_on:\n",
    ),
    "gives a report no reply that it knows": (
        "    else:\n        _reply_to_workers(plan, report.trial, report.length)\n", "",
    ),
    "reports twice": (
        "not trial.is_closed and not trial.is_waiting and trial.length == report.length", "True",
    ),
    "lets a closed trial train on": (
        "            elif not trial.was_notified_of_end:\n"
        "                plan.add_actions(Signal(index, signal.SIGINT))\n",
        "",
    ),
    "does not complete a waiting trial that is closed": (
        "                plan.record_state(index, TrialState.COMPLETED)\n            elif not",
        "                pass\n            elif not",
    ),
    "passes no signal on": ("    plan.signal_all(signaled.number)\n", ""),
    "kills nothing on a second signal": (
        "        plan.signal_all(signal.SIGKILL)\n        return\n", "        return\n",
    ),
    "counts a preemption": (
        "    elif how is Ending.PREEMPTED and not plan.state.is_stopping:\n",
        "    elif how is Ending.PREEMPTED:\n        _restart_trial(plan, ended)\n    elif False:\n",
    ),
    "hears no pause": (
        "        plan.signal_all(signal.SIGINT)\n\n\ndef _handle_trial", "\n\ndef _handle_trial",
    ),
    "hears no cancel of a trial": (
        "        plan.add_actions(Signal(index, signal.SIGINT))\n\n\ndef _conclude_run",
        "\n\ndef _conclude_run",
    ),
    "stops no worker when the search fails": (
        "        plan.set_fields(failure=failure)\n        plan.signal_all(signal.SIGINT)\n",
        "        plan.set_fields(failure=failure)\n",
    ),
    "lets a promoted trial wait for its turn": (
        "order.insert(0 if index == own_index else len(order), index)", "order.append(index)",
    ),
    "forgets an exit after a kill": ("elif index in exits:", "elif False:"),
    "forgets a cancel after a kill": (
        "_record_exit(plan, exits[index], is_unwanted=record.control is not None)",
        "_record_exit(plan, exits[index], is_unwanted=False)",
    ),
    "forgets the restarts after a kill": (
        "error=record.error, num_restarts=record.num_restarts", "error=record.error",
    ),
    "forgets a waiting trial": ("self.change_trial(event.trial, is_waiting=True)", "pass"),
    "completes a trial that stopped although it was canceled": (
        "TrialState.CANCELED if is_unwanted else TrialState.COMPLETED", "TrialState.COMPLETED",
    ),
    "leaves a failed trial's end without consequence": (
        "        plan.record_state(index, TrialState.ERROR, recorded)\n", "        pass\n",
    ),
}  # fmt: skip


def with_mistake(name: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Return the supervisor with a mistake in it."""
    before, after = MISTAKES[name]
    source = Path(supervisor.__file__).read_text()
    assert source.count(before) == 1, f"{source.count(before)} times in the source: {before}"
    module = types.ModuleType("mistaken_supervisor")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.replace(before, after), module.__name__, "exec"), vars(module))
    return module


@pytest.mark.soak
@pytest.mark.parametrize("name", MISTAKES)
def test_model_finds_planted_mistakes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = with_mistake(name, monkeypatch)
    with pytest.raises(Violation) as caught:
        _explore_all(module)
    print(caught.value)


def _explore_all(module: types.ModuleType) -> None:
    for scenario in SMALL.values():
        explore(scenario, module)
