"""Model of a runner without processes, files or time, which tests the runner's decisions.

A `World` contains the state that `detcore.run.supervisor` uses: records and search log, which
survive a kill of the runner, and workers, which do not. Moves are the runner's actions and events
between them: workers report, exit or fail, signals and requests arrive, and the runner is killed
and resumed. Each move is checked.

`explore` tries all orders of moves in a small scenario. `walk` tries random orders in a large
scenario.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import random
import signal
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from search_simulation import asha, setup

from detcore.run import supervisor
from detcore.search import (
    Create,
    Event,
    Exited,
    ExitReason,
    NewTrial,
    Operation,
    Search,
    SearchMethod,
    TrainTo,
    Validated,
)
from detcore.search.adaptive import AdaptiveSearch
from detcore.search.simple_methods import RandomSearch
from detcore.types import Control, TrialState

__all__ = ["Move", "Scenario", "Violation", "World", "explore", "walk"]

PAUSED, RUNNING = TrialState.PAUSED, TrialState.RUNNING
COMPLETED, ERROR, CANCELED = TrialState.COMPLETED, TrialState.ERROR, TrialState.CANCELED
OVER = (COMPLETED, ERROR, CANCELED)

Move = tuple[str, int]
Log = tuple[tuple[Event, str | None], ...]


class Race:
    """A search method that closes all other trials when the first trial has trained to the end."""

    def __init__(self, num_trials: int) -> None:
        self._open = list(range(num_trials))

    def start(self) -> Sequence[NewTrial]:
        return [NewTrial({}, 2) for _ in self._open]

    def validated(self, trial: int, length: int, metric: float) -> Sequence[TrainTo]:
        if length < 4:
            return [TrainTo(trial, 4)]
        closed, self._open = self._open, []
        return [TrainTo(closed_trial, None) for closed_trial in closed]

    def exited(self, trial: int, reason: ExitReason) -> Sequence[TrainTo]:
        self._open.remove(trial)
        return []

    def progress(self) -> float:
        return 0.0


def _halving() -> SearchMethod:
    settings = {"max_trials": 3, "max_rungs": 2, "divisor": 2.0, "max_concurrent_trials": 2}
    return AdaptiveSearch(asha(4, mode="aggressive", **settings))


METHODS: dict[str, Callable[[], SearchMethod]] = {
    "single": lambda: RandomSearch(setup(4, max_trials=1, max_concurrent_trials=1)),
    "random-2": lambda: RandomSearch(setup(4, max_trials=2, max_concurrent_trials=2)),
    "random-5": lambda: RandomSearch(setup(4, max_trials=5, max_concurrent_trials=3)),
    "halving": _halving,
    "race-2": lambda: Race(2),
    "race-4": lambda: Race(4),
}
# Faults, whose number is limited by a scenario. Other moves are always possible.
FAULTS = (
    "die",  # the runner is killed, and its workers exit
    "crash",  # the workers of a trial fail, with or without a new checkpoint
    "mistake",  # they raise an exception that would occur again
    "damage",  # their latest checkpoint cannot be restored
    "leave",  # they exit with code 75 without a request
    "preempt",  # the launcher's scheduler ends them
    "signal",  # the runner receives SIGINT; a second SIGINT is urgent
    "control",  # another process requests a pause, cancel or kill
    "trial control",  # another process cancels or kills one trial
    "failure",  # the search method fails, or the log cannot be written
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A search and its possible faults.

    Attributes:
        method: Name of the search method.
        places: Number of concurrent trials.
        max_restarts: As in the experiment file.
        scripts: Behaviour of some trials by index: reject, stop, fail, or fail repeatedly.
        faults: Maximum number of each fault.
        is_script: Whether the trial is a standalone script, which each run starts once.
    """

    method: str
    places: int = 1
    max_restarts: int = 1
    scripts: tuple[tuple[int, str], ...] = ()
    faults: tuple[tuple[str, int], ...] = ()
    is_script: bool = False

    @property
    def is_same_always(self) -> bool:
        """Whether the search log must be equal for all orders of moves."""
        faults = {name for name, _ in self.faults}
        crashes = dict(self.faults).get("crash", 0)
        return (
            self.places == 1
            and not faults & {"leave", "trial control", "mistake", "damage"}
            and crashes <= self.max_restarts
        )


class Violation(AssertionError):
    """Raised when the runner breaks an invariant."""


class Row(NamedTuple):
    """Record of a trial with its checkpoint batches."""

    id: int
    state: TrialState = PAUSED
    error: str | None = None
    num_restarts: int = 0
    control: Control | None = None
    checkpoints: tuple[int, ...] = ()


class Workers(NamedTuple):
    """The workers of a trial."""

    trial: int
    place: int
    begun_at: int
    target: int
    phase: str = "trains"  # then "waits" for a reply, then "ends"
    is_signaled: bool = False
    is_killed: bool = False


class Planned(NamedTuple):
    """State of a search: trials as (length, is_waiting, is_closed), and the last answer."""

    trials: tuple[tuple[int, bool, bool], ...]
    operations: tuple[Operation, ...]
    is_finished: bool


@functools.lru_cache(maxsize=200_000)
def planned(method: str, log: Log) -> Planned:
    """Replay a log, and return the search with the answer to the last event."""
    search = Search(METHODS[method](), seed=7)
    operations = search.first
    for event, _ in log:
        operations = search.apply(event)
    trials = tuple((t.length, t.is_waiting, t.is_closed) for t in search.trials)
    return Planned(trials, operations, search.is_finished)


def metric(trial: int, length: int) -> float:
    return (trial * 7 + 3) % 5 / 10 + 1 / length


def require(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class World:
    """A runner and its environment.

    Args:
        scenario: The search and its possible faults.
        supervisor: The supervisor module under test.
    """

    def __init__(self, scenario: Scenario, supervisor: types.ModuleType = supervisor) -> None:
        self.scenario = scenario
        self.supervisor: Any = supervisor
        self.scripts = dict(scenario.scripts)
        self.left = tuple(dict(scenario.faults).get(name, 0) for name in FAULTS)
        # State that survives a kill of the runner.
        self.log: Log = ()
        self.rows: tuple[Row, ...] = ()
        self.experiment = PAUSED
        self.num_runs = 0
        # State that is lost.
        self.state: Any = None
        self.queue: tuple[Any, ...] = ()
        self.inbox: tuple[Any, ...] = ()
        self.workers: tuple[Workers, ...] = ()
        self.made_way: tuple[int, ...] = ()
        self.script_ended: Any = None  # outcome of the script in this run
        self.now = 0.0
        self.has_ticked = False
        self._create(planned(scenario.method, ()).operations)

    def key(self) -> tuple[Any, ...]:
        """Return the state that determines all further moves."""
        return (
            self.left, self.log, self.rows, self.experiment, min(self.num_runs, 5), self.state,
            self.queue, tuple(map(self._hashable, self.inbox)), self.workers, self.now,
            self.has_ticked, self.made_way, self.script_ended,
        )  # fmt: skip

    def _hashable(self, event: Any) -> Any:
        # The search's requests follow from the log and contain unhashable dictionaries.
        if isinstance(event, self.supervisor.Advanced):
            return event._replace(operations=event.operations is None)
        return event

    @property
    def plan(self) -> Planned:
        return planned(self.scenario.method, self.log)

    @property
    def is_settled(self) -> bool:
        """Whether a resumed runner would have nothing new to do."""
        if self.state is not None or self.experiment is PAUSED or self.experiment is RUNNING:
            return False
        if self.experiment is COMPLETED or self.plan.is_finished:
            return True
        closed = [is_closed for _, _, is_closed in self.plan.trials]
        # A closed trial that failed after its last report trains the last part again.
        is_hopeless = all(
            row.state in OVER if closed[i] else self.scripts.get(i) in ("fail", "certain", "reject")
            for i, row in enumerate(self.rows)
        )
        return is_hopeless and self.num_runs > 4

    # Moves.

    def moves(self) -> list[Move]:
        """Return all possible next moves."""
        if self.is_settled:
            return []
        dies = [("die", 0)] if self._may("die") else []
        if self.state is None:
            return [("resume", 0), *self._trial_requests()]
        if self.queue:
            is_advance = isinstance(self.queue[0], self.supervisor.Advance)
            fails = [("failure", 0)] if is_advance and self._may("failure") else []
            return [("perform", 0), *fails, *dies]
        if self.inbox:
            return [("observe", 0), *dies]
        moves = [move for workers in self.workers for move in self._moves_of(workers)]
        if not self.has_ticked or self._next_start() is not None:
            moves.append(("tick", 0))
        if self._may("signal"):
            moves.append(("signal", 0))
        if self._may("control"):
            moves += [("control", number) for number in range(3)]
        return [*moves, *self._trial_requests(), *dies]

    def _may(self, fault: str) -> bool:
        return self.left[FAULTS.index(fault)] > 0

    def _next_start(self) -> float | None:
        """Return the time at which the next delayed trial may start."""
        if self.state.is_stopping:
            return None
        idle = [trial for trial in self.state.trials if trial.place is None]
        return min(
            (idle_trial.starts_at for idle_trial in idle if idle_trial.starts_at > self.now),
            default=None,
        )

    def _trial_requests(self) -> list[Move]:
        if not self._may("trial control"):
            return []
        indices = [
            i for i, row in enumerate(self.rows) if row.state not in OVER and not row.control
        ]
        return [(request, index) for index in indices for request in ("cancel trial", "kill trial")]

    def _moves_of(self, workers: Workers) -> Iterator[Move]:
        index = workers.trial
        if workers.is_killed:
            yield "killed", index
            return
        script = self.scripts.get(index)
        if workers.phase == "ends":
            yield "end well", index
        elif script is None:
            yield "report", index
        else:
            yield script, index
        if workers.is_signaled:
            yield "make way", index
        for name in ("crash", "mistake", "leave", "preempt"):
            if self._may(name):
                yield name, index
        if self._may("crash") and workers.phase == "trains":
            yield "crash later", index
        if self._may("damage") and workers.begun_at and workers.phase == "trains":
            yield "damage", index

    def do(self, move: Move) -> None:
        """Make a move, and check the result."""
        name, index = move
        fault = {"crash later": "crash", "cancel trial": "trial control"}.get(name, name)
        fault = "trial control" if name == "kill trial" else fault
        if fault in FAULTS:
            place = FAULTS.index(fault)
            self.left = (*self.left[:place], self.left[place] - 1, *self.left[place + 1 :])
        if name == "die":
            self.state, self.queue, self.inbox, self.workers = None, (), (), ()
        elif name == "resume":
            self._resume()
        elif name == "perform":
            self._perform()
        elif name == "failure":
            advance, self.queue = self.queue[0], self.queue[1:]
            failure: Any = ValueError
            self._decide(self.supervisor.Advanced(*advance, None, failure=failure))
        elif name == "observe":
            event, self.inbox = self.inbox[0], self.inbox[1:]
            self._decide(event)
        elif name == "tick":
            if self.has_ticked:  # time passes until a trial has waited long enough
                self.now = self._next_start() or self.now
            self._decide(self.supervisor.Tick(self.now))
            self.has_ticked = True
        elif name == "signal":
            is_urgent = bool(self.state.is_interrupted)
            self._decide(self.supervisor.Signaled(signal.SIGINT, is_urgent))
        elif name == "control":
            self._decide(self.supervisor.Requested(list(Control)[index]))
        elif fault == "trial control":
            control = Control.CANCEL if name == "cancel trial" else Control.KILL
            self._update(index, control=control)
            if self.state is not None:
                self._decide(self.supervisor.Requested(control, index))
        else:
            self._happen_to_workers(name, index)
        if self.state is not None and not self.queue and not self.inbox:
            self._check_idle()

    def _happen_to_workers(self, name: str, index: int) -> None:
        """Let workers report or exit."""
        kind, row = self.supervisor.Ending, self.rows[index]
        workers = self._workers(index)
        latest = max(row.checkpoints, default=0)
        if name == "report":
            self._save(index, workers.target)
            self._replace(workers._replace(phase="waits"))
            report = index, workers.target, metric(index, workers.target)
            self._decide(self.supervisor.Reported(*report))
            return
        facts: dict[str, Any] = {}
        if name in ("make way", "leave"):
            how = kind.INTERRUPTED
            self._save(index, max(latest, workers.target - 1))
        elif name == "killed":
            how = kind.INTERRUPTED
        elif name == "preempt":
            how, facts = kind.PREEMPTED, {"error": "preempted", "origin": "from somewhere"}
        elif name in ("end well", "stop"):
            how = kind.WELL
        elif name == "reject":
            how, facts = kind.INVALID_HP, {"error": "rejected"}
        elif name == "damage":
            checkpoints = row.checkpoints[:-1]
            self._update(index, checkpoints=checkpoints)
            how = kind.DAMAGED
            facts = {"error": "damaged", "origin": f"{checkpoints[-1]}" if checkpoints else None}
        else:
            how, facts = kind.CRASHED, {"error": "crashed", "origin": "from somewhere"}
            if name == "crash later" and workers.target - 1 > workers.begun_at:
                self._save(index, workers.target - 1)
                facts["made_progress"] = True
            if name == "mistake":
                facts["fault"] = ("ValueError at train.py:3", 1)
            if name == "certain":
                facts["permanent_cause"] = "it would fail in the same way each time"
        self.workers = tuple(group for group in self.workers if group.trial != index)
        self.script_ended = how if self.scenario.is_script else None
        if how is kind.INTERRUPTED and workers.phase == "trains":
            self.made_way = (*self.made_way, index)
        is_open = not self.plan.trials[index][2] and not row.control and not self.state.is_stopping
        self._decide(self.supervisor.WorkersEnded(index, how, self.now, **facts))
        if how is kind.CRASHED and workers.phase == "trains" and is_open:
            counts = self.supervisor.CountRestart, self.supervisor.Advance
            is_counted = any(isinstance(action, counts) for action in self.queue)
            require(is_counted, f"trial {index} crashed, and that does not count")
        if how is kind.PREEMPTED:
            counts = self.supervisor.CountRestart
            is_counted = any(isinstance(action, counts) for action in self.queue)
            require(not is_counted, f"trial {index} was preempted, and that counts")

    # The runner.

    def _resume(self) -> None:
        entries = [
            self.supervisor.LogEntry(
                self.log[n - 1][0] if n else None,
                planned(self.scenario.method, self.log[:n]).operations,
                self.log[n - 1][1] if n else None,
            )
            for n in range(len(self.log) + 1)
        ]
        self.experiment, self.now, self.has_ticked = RUNNING, 0.0, False
        self.num_runs += 1
        self.made_way, self.script_ended = (), None
        self.state, actions = self.supervisor.resume_run(
            entries,
            dict(enumerate(self.rows)),
            max_restarts=self.scenario.max_restarts,
            num_places=self.scenario.places,
            starts_once=self.scenario.is_script,
        )
        self.queue = tuple(actions)
        requests = [(row.control, index) for index, row in enumerate(self.rows) if row.control]
        self.inbox = tuple(self.supervisor.Requested(*request) for request in requests)

    def _decide(self, event: Any) -> None:
        self.has_ticked = False
        try:
            self.state, actions = self.supervisor.decide_actions(self.state, event)
        except (AssertionError, LookupError) as error:
            raise Violation(f"nothing is decided about {event}: {error}") from error
        self.queue = tuple(actions)
        kind = self.supervisor.Advance
        asks = [isinstance(action, kind) for action in actions]
        require(not any(asks[:-1]), "something follows before the search log has its cause")

    def _perform(self) -> None:
        action, self.queue = self.queue[0], self.queue[1:]
        perform = getattr(self, f"_do_{type(action).__name__.lower()}")
        perform(*action)

    def _do_start(self, index: int, length: int, place: int) -> None:
        running, used = [w.trial for w in self.workers], [w.place for w in self.workers]
        require(index not in running, f"trial {index} runs twice at once")
        require(place not in used, f"place {place} is used twice")
        require(0 <= place < self.scenario.places, f"unknown place {place}")
        require(not self.state.is_stopping, f"trial {index} starts although the run is to end")
        require(index < len(self.plan.trials), f"trial {index} starts before it is logged")
        row, (target, is_waiting, is_closed) = self.rows[index], self.plan.trials[index]
        require(
            target == length and (is_closed or not is_waiting),
            f"trial {index} starts before it is to train",
        )
        require(not row.control, f"trial {index} starts although it was canceled")
        starts_at = self.state.trials[index].starts_at
        require(starts_at <= self.now, f"trial {index} starts before it has waited")
        require(index not in self.made_way, f"trial {index} made way, and starts again at once")
        require(self.script_ended is None, "a script is started again by its runner")
        # A script killed after its training repeats its end.
        is_over = not self.scenario.is_script
        exits = [event for event, _ in self.log if is_over and isinstance(event, Exited)]
        require(index not in [e.trial for e in exits], f"trial {index} starts after its end")
        require(not is_closed or index in self.state.again, f"closed trial {index} starts")
        latest = max(row.checkpoints, default=0)
        self.workers = (*self.workers, Workers(index, place, latest, length))
        self._update(index, state=RUNNING, error=None)

    def _do_reply(self, index: int, length: int | None) -> None:
        workers = self._workers(index)
        require(workers.phase == "waits", f"trial {index} gets a reply that it did not wait for")
        target, is_waiting, is_closed = self.plan.trials[index]
        if length is None:
            self._replace(workers._replace(phase="ends"))
            return
        require(not (is_waiting or is_closed), f"trial {index} trains further without a decision")
        require(length == target > workers.target, f"trial {index} trains to {length}")
        require(not self.state.is_stopping, f"trial {index} trains further, not to its end")
        self._replace(workers._replace(phase="trains", target=length))

    def _do_signal(self, index: int, number: int) -> None:
        workers = self._workers(index)
        if number == signal.SIGKILL:
            self._replace(workers._replace(is_killed=True))
        else:
            self._replace(workers._replace(is_signaled=True))

    def _do_record(self, index: int, state: TrialState, error: str | None, is_new: bool) -> None:
        row = self.rows[index]
        if self.scenario.is_script and state is COMPLETED and row.state is not COMPLETED:
            require(self.script_ended is not None, "a script is COMPLETED that has not run")
        is_cut_off = self.script_ended is self.supervisor.Ending.INTERRUPTED
        require(not (state is COMPLETED and is_cut_off), "an interrupted script is COMPLETED")
        is_known = (row.state, row.error) == (state, error)
        require(is_new != is_known, f"the record of trial {index} is not what the runner believes")
        self._update(index, state=state, error=error)

    def _do_countrestart(self, index: int) -> None:
        count = self.rows[index].num_restarts + 1
        require(not self.state.is_stopping, f"trial {index} is to start again in a run that ends")
        require(count <= self.scenario.max_restarts, f"trial {index} restarts {count} times")
        self._update(index, num_restarts=count)

    def _do_say(self, text: str, index: int | None) -> None:
        is_known = any(workers.trial == index for workers in self.workers)
        is_ended = self.state.ending == index or self._finishes(index)
        require(index is None or is_known or is_ended, f"nowhere to say of trial {index}: {text}")

    def _finishes(self, index: int | None) -> bool:
        kind = self.supervisor.Finish
        return any(isinstance(action, kind) and action.trial == index for action in self.queue)

    def _do_finish(self, index: int, starts_again: bool) -> None:
        state = self.rows[index].state
        may = index in (*self.state.order, *self.state.again) and not self.state.is_stopping
        is_left = self.state.trials[index].is_excluded or self.state.trials[index].is_waiting
        require(state is not RUNNING, f"trial {index} is over, and recorded as running")
        require(not starts_again or may or is_left, f"trial {index} does not start again")

    def _do_advance(self, event: Event, error: str | None) -> None:
        log: Log = (*self.log, (event, error))
        try:
            plan = planned(self.scenario.method, log)
        except Exception as failure:
            raise Violation(f"the search refuses {event}: {failure}") from failure
        is_failure = isinstance(event, Exited) and event.reason is not ExitReason.STOPPED
        failed = {
            e.trial for e, _ in log if isinstance(e, Exited) and e.reason is not ExitReason.STOPPED
        }
        if is_failure and plan.is_finished and len(failed) == len(plan.trials):
            self.inbox = (self.supervisor.Advanced(event, error, None), *self.inbox)
            return
        self.log = log
        created = self._create(plan.operations)
        answer = self.supervisor.Advanced(event, error, plan.operations, created)
        self.inbox = (answer, *self.inbox)

    def _create(self, operations: Sequence[Operation]) -> tuple[int, ...]:
        new = [
            Row(operation.trial + 1) for operation in operations if isinstance(operation, Create)
        ]
        self.rows = (*self.rows, *new)
        return tuple(row.id for row in new)

    def _do_conclusion(
        self, state: TrialState, error: str | None, cut: bool, outside: bool, failure: Any
    ) -> None:
        require(not self.workers, "the run ends, and workers do not")
        require(not self.queue, "something follows the end")
        states = {row.state for row in self.rows}
        is_finished = self.plan.is_finished
        require(RUNNING not in states, "the run ends, and a trial is recorded as running")
        if failure is not None:
            state = ERROR
        elif state is COMPLETED:
            require(is_finished and COMPLETED in states, "COMPLETED without a completed trial")
        elif state is PAUSED:
            is_open = not is_finished or PAUSED in states
            require(is_open, "PAUSED, and nothing is left to do")
        if failure is None and state is not PAUSED:
            require(PAUSED not in states, f"{state.value}, and a trial is lost: it is PAUSED")
        self.experiment, self.state = state, None

    # Checks and changes.

    def _check_idle(self) -> None:
        state, plan = self.state, self.plan
        for workers in self.workers:
            index = workers.trial
            require(workers.phase != "waits", f"trial {index} waits for a reply that never comes")
            is_asked = workers.is_signaled or workers.is_killed or workers.phase == "ends"
            is_unwanted = state.is_stopping or self.rows[index].control
            is_over = plan.trials[index][2] and index not in state.again
            require(is_asked or not (is_unwanted or is_over), f"trial {index} is not asked to end")
            is_urgent = state.was_killed or Control.KILL in (
                state.control,
                self.rows[index].control,
            )
            require(workers.is_killed or not is_urgent, f"trial {index} is not killed")
        used = [workers.place for workers in self.workers]
        require(sorted((*used, *state.free)) == [*range(self.scenario.places)], "a place is lost")
        require(
            list(state.running) == sorted(w.trial for w in self.workers), "workers are forgotten"
        )
        require(state.ending is None, "the end of workers has no consequence")
        rows = [(t.state, t.error, t.num_restarts) for t in state.trials]
        require(rows == [row[1:4] for row in self.rows], "the records are not what is known")
        if state.failure is None:
            states = tuple((t.length, t.is_waiting, t.is_closed) for t in state.trials)
            require(states == plan.trials, "the plan of the runner is not that of the search")
            ready = {i for i, (_, waits, closed) in enumerate(states) if not waits and not closed}
            require(set(state.order) == ready, "a trial that is to train has no turn")
        if self.has_ticked and not state.is_stopping:
            self._check_starts()

    def _check_starts(self) -> None:
        """Check that no trial waits while a place is free."""
        state = self.state
        idle = [
            index
            for index in (*state.again, *state.order)
            if state.trials[index].place is None and not state.trials[index].is_excluded
        ]
        late = [index for index in idle if state.trials[index].starts_at <= self.now]
        first = idle[: len(state.free)]
        require(not {*late} & {*first}, "a trial with a free place does not start")
        require(idle or self.workers, "nothing runs, nothing waits, and the run does not end")

    def _workers(self, index: int) -> Workers:
        matches = [workers for workers in self.workers if workers.trial == index]
        require(matches, f"trial {index} has no workers")
        return matches[0]

    def _replace(self, changed: Workers) -> None:
        self.workers = tuple(changed if w.trial == changed.trial else w for w in self.workers)

    def _update(self, index: int, **fields: Any) -> None:
        row = self.rows[index]._replace(**fields)
        self.rows = (*self.rows[:index], row, *self.rows[index + 1 :])

    def _save(self, index: int, steps: int) -> None:
        checkpoints = self.rows[index].checkpoints
        if steps > max(checkpoints, default=0):
            self._update(index, checkpoints=(*checkpoints, steps))


def check_settled(world: World, expected: Log | None) -> None:
    """Check the final state of a sequence of moves."""
    states = [row.state for row in world.rows]
    require(all(state in OVER for state in states), f"a trial is lost: {states}")
    for index, row in enumerate(world.rows):
        require(row.num_restarts <= world.scenario.max_restarts, f"trial {index}: {row}")
        failed = [e for e, _ in world.log if isinstance(e, Exited) and e.trial == index]
        if failed and failed[0].reason is ExitReason.STOPPED:
            is_right = (row.state is CANCELED) == (row.control is not None)
            require(is_right, f"trial {index} stopped, and is {row.state.value}")
        if row.state is COMPLETED:
            closes = not failed or failed[0].reason is ExitReason.STOPPED
            require(closes, f"trial {index} failed, and is COMPLETED")
    reports = [event for event, _ in world.log if isinstance(event, Validated)]
    require(len({(e.trial, e.length) for e in reports}) == len(reports), "a report counts twice")
    if expected is not None:
        require(world.log == expected, f"the log is {world.log}, and not {expected}")


def undisturbed(scenario: Scenario, supervisor: types.ModuleType = supervisor) -> World:
    """Return the final world without faults."""
    world = World(dataclasses.replace(scenario, faults=()), supervisor)
    for _ in range(1000):
        moves = world.moves()
        if not moves:
            return world
        world.do(moves[0])
    raise Violation("a search without faults does not end")


def explore(scenario: Scenario, supervisor: types.ModuleType = supervisor) -> int:
    """Try all orders of moves, and return their number.

    A world that several orders reach is explored once.

    Raises:
        Violation: With one of the shortest orders of moves that cause it.
    """
    first = World(scenario, supervisor)
    numbers = {first.key(): 0}
    came_by: list[tuple[int, Move]] = [(-1, ("", 0))]
    children: list[list[int]] = []
    waiting = collections.deque([first])
    number, move = -1, ("", 0)
    try:
        expected = _expected(scenario, supervisor)
        while waiting:
            world, number, move = waiting.popleft(), len(children), ("", 0)
            moves = world.moves()
            if not moves:
                check_settled(world, expected)
            children.append([])
            for move in moves:
                child = copy.copy(world)
                child.do(move)
                key = child.key()
                if key not in numbers:
                    numbers[key] = len(numbers)
                    came_by.append((number, move))
                    waiting.append(child)
                children[number].append(numbers[key])
    except Violation as violation:
        path = [move] if move[0] else []
        while number > 0:
            number, move = came_by[number]
            path.insert(0, move)
        raise Violation(f"{violation}\n{scenario}:\n{path}") from violation
    return _count_orders(children)


def _count_orders(children: Sequence[Sequence[int]]) -> int:
    """Return the number of paths from the first world to a final world.

    Raises:
        Violation: If a path is circular, so that a run may not end.
    """
    num_parents = [0] * len(children)
    for successor in children:
        for child in successor:
            num_parents[child] += 1
    ways = [1, *[0] * (len(children) - 1)]
    ready, count = [0], 0
    orders = 0
    while ready:
        number = ready.pop()
        count += 1
        if not children[number]:
            orders += ways[number]
        for child in children[number]:
            ways[child] += ways[number]
            num_parents[child] -= 1
            if not num_parents[child]:
                ready.append(child)
    require(count == len(children), "a run need not end")
    return orders


def walk(scenario: Scenario, seed: int, supervisor: types.ModuleType = supervisor) -> list[Move]:
    """Try one random order of moves, and return it.

    Raises:
        Violation: With the moves that cause it.
    """
    dice = random.Random(seed)
    world = World(scenario, supervisor)
    moves: list[Move] = []
    try:
        expected = _expected(scenario, supervisor)
        while choices := world.moves():
            require(len(moves) < 500, "a search does not end")
            moves.append(dice.choice(choices))
            world.do(moves[-1])
        check_settled(world, expected)
    except Violation as violation:
        raise Violation(f"{violation}\nseed {seed} of {scenario}:\n{moves}") from violation
    return moves


@functools.lru_cache
def _expected(scenario: Scenario, supervisor: types.ModuleType) -> Log | None:
    return undisturbed(scenario, supervisor).log if scenario.is_same_always else None
