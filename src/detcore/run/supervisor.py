"""Decides what happens to an experiment's trials, without I/O and without a clock.

`decide_actions` accepts the state of a run and an event, and returns the next state and the
resulting actions, in order. `detcore.run.search_loop` observes the events and performs the actions.

`Advance` is a question: it is the last action of its decision, and `Advanced` is the next event.
The search log therefore contains each search event before any action follows from it.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from detcore.contract.errors import in_one_line
from detcore.contract.values import Control, TrialState
from detcore.search import Close, Create, Exited, ExitReason, Operation, Train, Validated
from detcore.search import Event as SearchEvent

if TYPE_CHECKING:
    from detcore.contract.errors import DetcoreError
    from detcore.records import TrialRecord

_INITIAL_BACKOFF_S = 1.0
_MAX_BACKOFF_S = 30.0
_CHUNK = 256


class SupervisedTrial(NamedTuple):
    """State of a trial for the decisions about it."""

    id: int
    length: int = 0  # training length that the search requests
    is_waiting: bool = False  # it has trained to the length, and the search has not decided yet
    is_closed: bool = False  # the search does not train it further
    state: TrialState = TrialState.PAUSED  # as recorded
    error: str | None = None  # as recorded
    num_restarts: int = 0  # in all runs; as recorded
    place: int | None = None  # place of its workers; None while it has no workers
    was_notified_of_end: bool = False
    requested_end: Control | None = None  # how another process has requested its final end
    is_excluded: bool = False  # it does not start again in this run
    fault: tuple[str, int] | None = None  # the error that ended the last start, which may recur
    next_pause_s: float = 0.0  # wait after the next crash without progress
    starts_at: float = 0.0  # end of the present wait
    was_complete: bool = False  # a script restores the complete trial without changing it


@dataclasses.dataclass(frozen=True, slots=True)
class Trials:
    """Immutable sequence of trials; a modified copy shares most of its memory.

    A search may have 100,000 trials, and a decision changes one or two of them.
    """

    _chunks: tuple[tuple[SupervisedTrial, ...], ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self._chunks[-1:])) + _CHUNK * max(0, len(self._chunks) - 1)

    def __getitem__(self, index: int) -> SupervisedTrial:
        return self._chunks[index // _CHUNK][index % _CHUNK]

    def __iter__(self) -> Iterator[SupervisedTrial]:
        return itertools.chain.from_iterable(self._chunks)

    def replace_trial(self, index: int, trial: SupervisedTrial) -> Trials:
        """Return a copy with another trial at an index. The length as index appends the trial."""
        number, place = divmod(index, _CHUNK)
        (chunk,) = self._chunks[number : number + 1] or ((),)
        new_chunk = (*chunk[:place], trial, *chunk[place + 1 :])
        return Trials((*self._chunks[:number], new_chunk, *self._chunks[number + 1 :]))


class State(NamedTuple):
    """State of a run of an experiment. Trials are identified by their index in the search.

    The order follows only from the search log. A trial that trains further keeps its turn.
    """

    free: tuple[int, ...]  # free places; the next trial uses the first
    max_restarts: int
    starts_once: bool = False  # its trial is a script, which only the user starts again
    trials: Trials = Trials()
    running: tuple[int, ...] = ()  # trials that have workers
    order: tuple[int, ...] = ()  # trials to train, in order
    # Closed trials that failed after their last report. They start before all others.
    again: tuple[int, ...] = ()
    ending: int | None = None  # trial whose workers have just ended and which is undecided
    is_interrupted: bool = False  # by a signal
    was_killed: bool = False  # by a second Ctrl-C
    control: Control | None = None  # the last request for the whole experiment
    failure: DetcoreError | None = None  # why the search cannot continue
    last_error: str | None = None  # error of the last failed trial in this run

    @property
    def is_stopping(self) -> bool:
        """Whether trials neither start nor train further."""
        return self.is_interrupted or self.control is not None or self.failure is not None

    @property
    def stopped_state(self) -> TrialState:
        """State of a trial that ends before the search closes it."""
        is_over = self.control in (Control.CANCEL, Control.KILL)
        return TrialState.CANCELED if is_over else TrialState.PAUSED


class Ending(enum.Enum):
    """How the workers of a trial ended."""

    WELL = enum.auto()
    INTERRUPTED = enum.auto()
    PREEMPTED = enum.auto()  # by the launcher's scheduler; not a failure
    INVALID_HP = enum.auto()
    DAMAGED = enum.auto()
    CRASHED = enum.auto()


class Tick(NamedTuple):
    """Time has passed: trials may start, or the run may end."""

    now: float


class Started(NamedTuple):
    """The workers of a trial have started."""

    trial: int
    is_complete: bool  # a script restores a trial that an earlier start completed


class Reported(NamedTuple):
    """A trial has trained to a length, and its workers wait for a reply."""

    trial: int
    length: int
    metric: float


class WorkersEnded(NamedTuple):
    """The workers of a trial have exited."""

    trial: int
    how: Ending
    now: float
    error: str = ""  # in one line; empty after an orderly end
    fault: tuple[str, int] | None = None  # the exception and its batch; None if it cannot recur
    permanent_cause: str | None = None  # why the next start would fail in the same way
    made_progress: bool = False  # they saved a checkpoint after the one from which they started
    origin: str | None = None  # description of where the next start continues; None if it cannot
    is_error_shown: bool = False  # the workers have printed the error


class Signaled(NamedTuple):
    """This process received a signal of another kind, or its second Ctrl-C."""

    number: int
    is_urgent: bool = False


class Requested(NamedTuple):
    """Another process requests the end of the experiment, or of one of its trials."""

    control: Control
    trial: int | None = None


class Advanced(NamedTuple):
    """The search log contains an event, and these operations follow.

    An exit that would end the search without any trained trial is not logged, and `operations` is
    None. After a failure, the log is unchanged.
    """

    event: SearchEvent
    error: str | None
    operations: Sequence[Operation] | None
    created: Sequence[int] = ()  # ids of the new trials
    failure: DetcoreError | None = None


Event: TypeAlias = Tick | Started | Reported | WorkersEnded | Signaled | Requested | Advanced


class Start(NamedTuple):
    """Start the workers of a trial in a place, to train to a length."""

    trial: int
    length: int
    place: int


class Reply(NamedTuple):
    """Send the next length to the workers of a trial; None to end."""

    trial: int
    length: int | None


class Signal(NamedTuple):
    """Send a signal to the workers of a trial."""

    trial: int
    number: int


class Record(NamedTuple):
    """Show the state of a trial, and record a new state."""

    trial: int
    state: TrialState
    error: str | None
    is_new: bool


class CountRestart(NamedTuple):
    """Record that a trial starts again after a crash."""

    trial: int


class Say(NamedTuple):
    """Show a line, and write it to a trial's log if the trial has or just had workers."""

    text: str
    trial: int | None = None


class Finish(NamedTuple):
    """Release a trial whose workers ended, and report a final end to observers."""

    trial: int
    starts_again: bool


class Advance(NamedTuple):
    """Apply an event to the search and log it; answered by `Advanced`."""

    event: SearchEvent
    error: str | None = None


class Conclusion(NamedTuple):
    """End the run."""

    state: TrialState = TrialState.PAUSED  # state of the experiment
    error: str | None = None
    was_killed: bool = False  # a second Ctrl-C killed the workers
    is_external: bool = False  # a signal or another process ended the run
    failure: DetcoreError | None = None  # to raise


Action: TypeAlias = (
    Start | Reply | Signal | Record | CountRestart | Say | Finish | Advance | Conclusion
)


class LogEntry(NamedTuple):
    """An event in the search log (None for the start), and the resulting operations."""

    event: SearchEvent | None
    operations: Sequence[Operation]
    error: str | None = None


def resume_run(
    log: Iterable[LogEntry],
    records: Mapping[int, TrialRecord],
    *,
    max_restarts: int,
    num_places: int,
    starts_once: bool = False,
) -> tuple[State, Sequence[Action]]:
    """Return the state at the start of a run, and the actions that update the records.

    The last runner may have been killed between writing a log entry and updating the records. A
    script that is started again runs again, even if its training is complete.
    """
    free = tuple(range(num_places))
    plan = _Decisions(State(free=free, max_restarts=max_restarts, starts_once=starts_once))
    exits: dict[int, LogEntry] = {}
    for entry in log:
        created = [
            operation.trial for operation in entry.operations if isinstance(operation, Create)
        ]
        plan.follow_search(entry.event, entry.operations, [records[index].id for index in created])
        if isinstance(entry.event, Exited):
            exits[entry.event.trial] = entry
    for index, trial in enumerate(plan.state.trials):
        record = records[index]
        plan.change_trial(
            index, state=record.state, error=record.error, num_restarts=record.num_restarts
        )
        if not trial.is_closed:
            plan.record_state(index, TrialState.PAUSED)
        elif starts_once:
            was_complete = record.state is TrialState.COMPLETED
            plan.change_trial(index, was_complete=was_complete)
            plan.run_again(index)
            plan.record_state(index, TrialState.COMPLETED if was_complete else TrialState.PAUSED)
        elif index in exits:
            _record_exit(plan, exits[index], is_unwanted=record.control is not None)
        elif record.state in (TrialState.ERROR, TrialState.RUNNING):
            # The code failed or was killed after the last report: this part runs again.
            plan.run_again(index)
            plan.record_state(index, TrialState.PAUSED)
        else:
            plan.record_state(index, TrialState.COMPLETED)
    return plan.state, plan.actions


def decide_actions(state: State, event: Event) -> tuple[State, Sequence[Action]]:
    """Return the next state after an event, and the resulting actions, in order."""
    plan = _Decisions(state)
    match event:
        case Tick(now):
            _start_trials(plan, now)
        case Started(index, is_complete):
            plan.change_trial(index, was_complete=is_complete)
        case Reported():
            _handle_report(plan, event)
        case WorkersEnded():
            _handle_ended_workers(plan, event)
        case Signaled():
            _forward_signal(plan, event)
        case Requested(control, None):
            _handle_request(plan, control)
        case Requested(control, int(trial)):
            _handle_trial_request(plan, trial, control)
        case Advanced(exited, error, None, failure=None):
            # The search would end without a result: --resume tries this trial again.
            plan.change_trial(exited.trial, is_excluded=True)
            plan.record_state(exited.trial, TrialState.ERROR, error)
        case Advanced():
            _follow_search(plan, event)
    ending = plan.state.ending
    if ending is not None and not isinstance(plan.actions[-1], Advance):
        is_paused = plan.state.trials[ending].state is TrialState.PAUSED
        plan.set_fields(ending=None)
        plan.add_actions(Finish(ending, starts_again=is_paused and not plan.state.is_stopping))
    return plan.state, plan.actions


class _Decisions:
    """A decision in progress: the state and the actions so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: list[Action] = []

    def add_actions(self, *actions: Action) -> None:
        self.actions += actions

    def set_fields(self, **fields: Any) -> None:
        self.state = self.state._replace(**fields)

    def change_trial(self, index: int, **fields: Any) -> None:
        trials = self.state.trials
        self.set_fields(trials=trials.replace_trial(index, trials[index]._replace(**fields)))
        if "place" in fields:
            other_trials = {*self.state.running} - {index}
            own_trial = () if fields["place"] is None else (index,)
            self.set_fields(running=tuple(sorted((*other_trials, *own_trial))))

    def record_state(self, index: int, state: TrialState, error: str | None = None) -> None:
        previous = self.state.trials[index]
        self.change_trial(index, state=state, error=error)
        self.add_actions(
            Record(index, state, error, is_new=(previous.state, previous.error) != (state, error))
        )

    def signal_all(self, number: int) -> None:
        self.add_actions(*(Signal(index, number) for index in self.state.running))

    def run_again(self, index: int) -> None:
        """Let a closed trial run again; an open trial gets its turn anyway."""
        if self.state.trials[index].is_closed and index not in self.state.again:
            self.set_fields(again=(*self.state.again, index))

    def run_no_more(self, index: int) -> None:
        self.set_fields(again=tuple(other for other in self.state.again if other != index))

    def advance_search(self, event: SearchEvent, error: str | None = None) -> None:
        """Pass an event to the search, unless the search has failed."""
        if self.state.failure is None:
            self.add_actions(Advance(event, error))
        else:
            _complete_event(self, event, error)

    def follow_search(
        self, event: SearchEvent | None, operations: Sequence[Operation], created: Sequence[int]
    ) -> None:
        """Apply the search's operations to the length of each trial and to their order."""
        own_index = None if event is None else event.trial
        order = [index for index in self.state.order if index != own_index]
        if isinstance(event, Validated):
            self.change_trial(event.trial, is_waiting=True)
        elif isinstance(event, Exited):
            self.change_trial(event.trial, is_closed=True)
        ids, closed = iter(created), set[int]()
        for operation in operations:
            match operation:
                case Create(index):
                    self.set_fields(
                        trials=self.state.trials.replace_trial(index, SupervisedTrial(next(ids)))
                    )
                case Train(index, length):
                    self.change_trial(index, length=length, is_waiting=False)
                    order.insert(0 if index == own_index else len(order), index)
                case Close(index):
                    self.change_trial(index, is_closed=True)
                    closed.add(index)
        self.set_fields(order=tuple(index for index in order if index not in closed))


def _start_trials(plan: _Decisions, now: float) -> None:
    """Start trials in free places; conclude if no trial runs or waits for its time."""
    state, reserved, free = plan.state, [], list(plan.state.free)
    for index in () if state.is_stopping else (*state.again, *state.order):
        trial = state.trials[index]
        if trial.place is not None or trial.is_excluded:
            continue
        if not free:
            break
        place = free.pop(0)
        if now < trial.starts_at:
            # Its place is reserved: the search must not depend on which trial uses it meanwhile.
            reserved.append(place)
        else:
            plan.change_trial(index, place=place, was_notified_of_end=False)
            plan.change_trial(index, state=TrialState.RUNNING, error=None)  # the start records it
            plan.add_actions(Start(index, trial.length, place))
            plan.record_state(index, TrialState.RUNNING)
    plan.set_fields(free=(*reserved, *free))
    if not reserved and not plan.state.running:
        _conclude_run(plan)


def _handle_report(plan: _Decisions, report: Reported) -> None:
    trial = plan.state.trials[report.trial]
    # A trial that repeats its end reports a length that the search already knows.
    if not trial.is_closed and not trial.is_waiting and trial.length == report.length:
        plan.advance_search(Validated(*report))
    else:
        _reply_to_workers(plan, report.trial, report.length)


def _reply_to_workers(plan: _Decisions, index: int, length: int) -> None:
    """Send the next length, or the end, to workers that have trained to a length."""
    trial = plan.state.trials[index]
    trains_on = not trial.is_closed and not trial.is_waiting and trial.length > length
    if trains_on and not plan.state.is_stopping:
        plan.add_actions(Reply(index, trial.length))
        plan.record_state(index, TrialState.RUNNING)
    else:
        plan.change_trial(index, was_notified_of_end=True)
        plan.add_actions(Reply(index, None))


def _follow_search(plan: _Decisions, advanced: Advanced) -> None:
    """Apply the search's operations immediately; a trial to train waits for its turn."""
    event, error, operations, created, failure = advanced
    if failure is not None:
        plan.set_fields(failure=failure)
        plan.signal_all(signal.SIGINT)
    else:
        plan.follow_search(event, operations or (), created)
    for operation in operations or ():
        index = operation.trial
        trial = plan.state.trials[index]
        if trial.place is None and not isinstance(operation, Close):
            plan.record_state(index, TrialState.PAUSED)
        elif isinstance(operation, Close) and index != event.trial:
            if trial.place is None:
                plan.record_state(index, TrialState.COMPLETED)
            elif not trial.was_notified_of_end:
                plan.add_actions(Signal(index, signal.SIGINT))
    _complete_event(plan, event, error)


def _complete_event(plan: _Decisions, event: SearchEvent, error: str | None) -> None:
    """Take the actions for a search event that had to wait for the log."""
    if isinstance(event, Validated):
        _reply_to_workers(plan, event.trial, event.length)
        return
    trial = plan.state.trials[event.trial]
    if event.reason is not ExitReason.STOPPED:
        plan.add_actions(Say(f"trial {trial.id} failed: {plan.state.last_error}", event.trial))
    _record_exit(plan, LogEntry(event, (), error), is_unwanted=trial.requested_end is not None)


def _record_exit(plan: _Decisions, entry: LogEntry, *, is_unwanted: bool) -> None:
    assert isinstance(entry.event, Exited)
    if entry.event.reason is not ExitReason.STOPPED:
        plan.record_state(entry.event.trial, TrialState.ERROR, entry.error)
    else:
        state = TrialState.CANCELED if is_unwanted else TrialState.COMPLETED
        plan.record_state(entry.event.trial, state)


def _handle_ended_workers(plan: _Decisions, ended: WorkersEnded) -> None:
    """Decide whether a trial whose workers ended is over, waits, or starts again."""
    index, how = ended.trial, ended.how
    trial = plan.state.trials[index]
    is_orderly = how in (Ending.WELL, Ending.INTERRUPTED, Ending.PREEMPTED)
    assert trial.place is not None
    plan.set_fields(free=(trial.place, *plan.state.free), ending=index)
    plan.change_trial(index, place=None)
    if trial.is_closed and _is_done(plan.state, trial, how):
        plan.run_no_more(index)
        plan.record_state(index, TrialState.COMPLETED)
    elif trial.requested_end is not None:
        _end_trial(plan, index)
    elif trial.was_notified_of_end and not trial.is_closed:
        if not is_orderly:
            text = in_one_line(f"trial {trial.id}: {ended.error}", "Its result is kept")
            plan.add_actions(Say(text, index))
        plan.record_state(index, plan.state.stopped_state)
    elif how is Ending.WELL:
        plan.advance_search(Exited(index, ExitReason.STOPPED))
    elif how is Ending.PREEMPTED and not plan.state.is_stopping:
        text = in_one_line(f"trial {trial.id}: {ended.error}", f"It continues {ended.origin}")
        plan.add_actions(Say(text, index))
        plan.run_again(index)
        plan.record_state(index, TrialState.PAUSED)
    elif how in (Ending.INTERRUPTED, Ending.PREEMPTED):
        plan.run_again(index)
        plan.change_trial(index, is_excluded=True)
        plan.record_state(index, plan.state.stopped_state)
    elif how is Ending.INVALID_HP:
        _fail_trial(plan, index, ended.error, ExitReason.INVALID_HP)
    elif how is Ending.CRASHED:
        _restart_trial(plan, ended)
    elif ended.origin is None or plan.state.starts_once:
        if ended.origin is not None:
            advice = f"Start the script again: it resumes from {ended.origin}"
            text = in_one_line("the checkpoint is recorded as damaged", advice)
            plan.add_actions(Say(text, index))
        _fail_trial(plan, index, ended.error, ExitReason.ERRORED)
    else:  # its checkpoint is damaged
        plan.run_again(index)
        plan.record_state(index, plan.state.stopped_state)
        text = in_one_line(ended.error, f"Resuming from the previous checkpoint: {ended.origin}")
        plan.add_actions(Say(text, index))


def _is_done(state: State, trial: SupervisedTrial, how: Ending) -> bool:
    """Whether a closed trial is complete after such an end.

    An interrupted script still has to run the code after its training.
    """
    if how is Ending.INTERRUPTED:
        return not state.starts_once
    return how is Ending.WELL or trial.was_complete


def _end_trial(plan: _Decisions, index: int) -> None:
    """End a trial without workers for good; a completed trial is unchanged."""
    if not plan.state.trials[index].is_closed:
        plan.advance_search(Exited(index, ExitReason.STOPPED))
    elif index in plan.state.again or index == plan.state.ending:
        plan.run_no_more(index)
        plan.record_state(index, TrialState.CANCELED)


def _restart_trial(plan: _Decisions, ended: WorkersEnded) -> None:
    """Start a crashed trial again, unless the error is permanent."""
    index, error, max_restarts = ended.trial, ended.error, plan.state.max_restarts
    trial = plan.state.trials[index]
    if plan.state.is_stopping:
        plan.change_trial(index, is_excluded=True)
        plan.set_fields(last_error=error)
        plan.record_state(index, TrialState.ERROR, error)
        return
    permanent_cause = ended.permanent_cause
    if ended.fault is not None and ended.fault == trial.fault and not ended.made_progress:
        permanent_cause = "it failed twice in the same way, with no new checkpoint in between"
    plan.change_trial(index, fault=ended.fault)
    if permanent_cause or trial.num_restarts >= max_restarts:
        if permanent_cause and max_restarts:
            plan.add_actions(
                Say(f"trial {trial.id} is not started again: {permanent_cause}", index)
            )
        _fail_trial(plan, index, error, ExitReason.ERRORED)
        return
    pause_s = 0.0 if ended.made_progress else trial.next_pause_s
    num_restarts = trial.num_restarts + 1
    plan.run_again(index)
    plan.change_trial(
        index,
        num_restarts=num_restarts,
        next_pause_s=min(pause_s * 2 or _INITIAL_BACKOFF_S, _MAX_BACKOFF_S),
        starts_at=ended.now + pause_s,
    )
    plan.add_actions(CountRestart(index))
    plan.record_state(index, TrialState.PAUSED, error)
    when = f" in {pause_s:.0f} s" if pause_s else ""
    again = f"It starts again{when} {ended.origin} (restart {num_restarts} of {max_restarts})"
    # In a search, the output lines of trials may be hidden.
    is_shown = ended.is_error_shown and len(plan.state.trials) == 1
    failed = f"trial {trial.id} failed" if is_shown else f"trial {trial.id} failed: {error}"
    plan.add_actions(Say(in_one_line(failed, again), index))


def _fail_trial(plan: _Decisions, index: int, error: str, reason: ExitReason) -> None:
    """End a trial that failed for good."""
    plan.set_fields(last_error=error)
    plan.run_no_more(index)
    recorded = f"InvalidHP: {error}" if reason is ExitReason.INVALID_HP else error
    if plan.state.trials[index].is_closed:
        # It failed after its last report, which is kept.
        plan.record_state(index, TrialState.ERROR, recorded)
    else:
        plan.advance_search(Exited(index, reason), recorded)


def _forward_signal(plan: _Decisions, signaled: Signaled) -> None:
    plan.set_fields(is_interrupted=True)
    if signaled.is_urgent:
        plan.set_fields(was_killed=True)
        plan.signal_all(signal.SIGKILL)
        return
    # The signal is forwarded unchanged: a machine that ends gives less time than a person.
    plan.signal_all(signaled.number)
    is_one = len(plan.state.running) < 2
    effect, end = ("the trial checkpoints", "ends") if is_one else ("all trials checkpoint", "end")
    name = signal.Signals(signaled.number).name
    urge = "press Ctrl-C again to end now, without a checkpoint"
    plan.add_actions(Say(f"{name}: {effect} at the next batch boundary and {end} ({urge})"))


def _handle_request(plan: _Decisions, control: Control) -> None:
    if control is plan.state.control:
        return
    plan.set_fields(control=control)
    if control is Control.KILL:
        plan.add_actions(Say("kill: all trials end now, without a checkpoint"))
        plan.signal_all(signal.SIGKILL)
    else:
        effect = "all trials checkpoint at the next batch boundary and end"
        plan.add_actions(Say(f"{control.value}: {effect}"))
        plan.signal_all(signal.SIGINT)


def _handle_trial_request(plan: _Decisions, index: int, control: Control) -> None:
    trial = plan.state.trials[index]
    if trial.requested_end is control:
        return
    plan.change_trial(index, requested_end=control)
    name = f"trial {trial.id}"
    if trial.place is None:
        _end_trial(plan, index)
    elif control is Control.KILL:
        plan.add_actions(Say(f"kill: {name} ends now, without a checkpoint", index))
        plan.add_actions(Signal(index, signal.SIGKILL))
    else:
        effect = "checkpoints at the next batch boundary and ends"
        plan.add_actions(Say(f"cancel: {name} {effect}", index))
        plan.add_actions(Signal(index, signal.SIGINT))


def _conclude_run(plan: _Decisions) -> None:
    """End the run, because no trial runs or waits for its time."""
    state = plan.state
    states = {trial.state for trial in state.trials}
    is_left = any(state.trials[index].state is not TrialState.COMPLETED for index in state.again)
    is_finished = all(trial.is_closed for trial in state.trials) and not is_left
    error = state.last_error
    if len(state.trials) != 1 and error is not None:
        error = f"no trial completed; the last failure: {error}"
    if state.failure is not None:
        plan.add_actions(Conclusion(failure=state.failure))
    elif is_finished and TrialState.COMPLETED in states:
        plan.add_actions(Conclusion(TrialState.COMPLETED))
    elif is_finished and TrialState.ERROR not in states:  # every trial was canceled
        plan.add_actions(Conclusion(TrialState.CANCELED))
    elif is_finished:
        plan.add_actions(Conclusion(TrialState.ERROR, error))
    elif state.stopped_state is TrialState.CANCELED:
        for index, trial in enumerate(state.trials):
            if not trial.is_closed or index in state.again:
                plan.record_state(index, TrialState.CANCELED)
        plan.add_actions(Conclusion(TrialState.CANCELED))
    elif state.last_error is not None and TrialState.PAUSED not in states:
        plan.add_actions(Conclusion(TrialState.ERROR, error))
    else:
        plan.add_actions(
            Conclusion(
                TrialState.PAUSED,
                was_killed=state.was_killed,
                is_external=state.is_stopping,
            )
        )
