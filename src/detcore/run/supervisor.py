"""Decides the fates of an experiment's trials, without I/O and without a clock.

`decide` takes the state of a run and an event, and returns the next state and the actions that
follow, in order. `detcore.run.search_loop` observes the events and performs the actions.

`Advance` is a question: it is the last action of its decision, and `Advanced` is the next event.
Nothing can therefore follow from an event of the search before the search log contains it.
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
    """Everything that the fate of a trial depends on."""

    id: int
    length: int = 0  # how far the search wants it trained
    is_waiting: bool = False  # it trained that far, and the search has not decided yet
    is_closed: bool = False  # the search wants it trained no further
    state: TrialState = TrialState.PAUSED  # as recorded
    error: str | None = None  # as recorded
    num_restarts: int = 0  # over all runs; as recorded
    place: int | None = None  # where its workers run; None while it has no workers
    was_notified_of_end: bool = False
    requested_end: Control | None = None  # how another process wants it to end for good
    is_excluded: bool = False  # it does not start again in this run
    fault: tuple[str, int] | None = None  # ended the last start, and may recur
    next_pause_s: float = 0.0  # how long it waits after the next crash without progress
    starts_at: float = 0.0  # when the present wait is over
    was_complete: bool = False  # a script restores it, which changes nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Trials:
    """Trials by index, which never change: a changed copy shares most of its memory with this.

    A search may have 100,000 trials, and a decision changes one or two of them.
    """

    _chunks: tuple[tuple[SupervisedTrial, ...], ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self._chunks[-1:])) + _CHUNK * max(0, len(self._chunks) - 1)

    def __getitem__(self, index: int) -> SupervisedTrial:
        return self._chunks[index // _CHUNK][index % _CHUNK]

    def __iter__(self) -> Iterator[SupervisedTrial]:
        return itertools.chain.from_iterable(self._chunks)

    def replaced(self, index: int, trial: SupervisedTrial) -> Trials:
        """Return a copy with another trial at an index; the length as index appends it."""
        number, place = divmod(index, _CHUNK)
        (chunk,) = self._chunks[number : number + 1] or ((),)
        changed = (*chunk[:place], trial, *chunk[place + 1 :])
        return Trials((*self._chunks[:number], changed, *self._chunks[number + 1 :]))


class State(NamedTuple):
    """A run of an experiment. Trials are named by their index in the search.

    The order follows from the search log alone; a trial that trains further keeps its turn.
    """

    free: tuple[int, ...]  # places; the next trial takes the first one
    max_restarts: int
    starts_once: bool = False  # its trial is a script, which only its owner starts again
    trials: Trials = Trials()
    running: tuple[int, ...] = ()  # trials that have workers
    order: tuple[int, ...] = ()  # trials to train, in the order of their turns
    again: tuple[int, ...] = ()  # closed trials that failed after their last report; they go first
    ending: int | None = None  # its workers have just ended, and its fate is undecided
    is_interrupted: bool = False  # by a signal
    was_killed: bool = False  # by a second Ctrl-C
    control: Control | None = None  # the last request for the whole experiment
    failure: DetcoreError | None = None  # why the search cannot continue
    last_error: str | None = None  # of the trial that failed last in this run

    @property
    def is_stopping(self) -> bool:
        """Whether no trial starts or trains further."""
        return self.is_interrupted or self.control is not None or self.failure is not None

    @property
    def stopped_state(self) -> TrialState:
        """The state of a trial that ends before the search closes it."""
        is_over = self.control in (Control.CANCEL, Control.KILL)
        return TrialState.CANCELED if is_over else TrialState.PAUSED


class Ending(enum.Enum):
    """How the workers of a trial ended."""

    WELL = enum.auto()
    INTERRUPTED = enum.auto()
    INVALID_HP = enum.auto()
    DAMAGED = enum.auto()
    CRASHED = enum.auto()


class Tick(NamedTuple):
    """Time has passed: trials may start, or the run is over."""

    now: float


class Started(NamedTuple):
    """The workers of a trial have started."""

    trial: int
    is_complete: bool  # a script restores what an earlier start completed


class Reported(NamedTuple):
    """A trial trained to a length, and its workers wait for a reply."""

    trial: int
    length: int
    metric: float


class WorkersEnded(NamedTuple):
    """The workers of a trial are gone."""

    trial: int
    how: Ending
    now: float
    error: str = ""  # in a line; empty after an orderly end
    fault: tuple[str, int] | None = None  # the exception and its batch; None if it may not recur
    why_certain: str | None = None  # why the next start would fail in the same way
    made_progress: bool = False  # there is a later checkpoint than the one they started from
    origin: str | None = None  # where the next start continues, in words; None: nowhere
    is_error_shown: bool = False  # by the workers themselves


class Signaled(NamedTuple):
    """This process received a signal of another kind, or its second Ctrl-C."""

    number: int
    is_urgent: bool = False


class Requested(NamedTuple):
    """Another process wants the experiment, or one of its trials, to end."""

    control: Control
    trial: int | None = None


class Advanced(NamedTuple):
    """The search log contains an event, and these operations follow.

    The log leaves out an exit that would end the search without one trained trial; `operations` is
    None then. After a failure the log is as it was.
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
    """Tell the workers of a trial how far to train; None: to end."""

    trial: int
    length: int | None


class Signal(NamedTuple):
    """Send a signal to the workers of a trial."""

    trial: int
    number: int


class Record(NamedTuple):
    """Show the state of a trial; record it if it is new."""

    trial: int
    state: TrialState
    error: str | None
    is_new: bool


class CountRestart(NamedTuple):
    """Record that a trial starts again after a crash."""

    trial: int


class Say(NamedTuple):
    """Show a line; write it to the log of a trial, too, if that has or just had workers."""

    text: str
    trial: int | None = None


class Finish(NamedTuple):
    """Release a trial whose workers ended; unless it starts again, report the end to observers."""

    trial: int
    starts_again: bool


class Advance(NamedTuple):
    """Apply an event to the search and log it; answered by `Advanced`."""

    event: SearchEvent
    error: str | None = None


class Conclusion(NamedTuple):
    """End the run."""

    state: TrialState = TrialState.PAUSED  # of the experiment
    error: str | None = None
    was_killed: bool = False  # a second Ctrl-C killed the workers
    is_external: bool = False  # a signal or another process ended the run
    failure: DetcoreError | None = None  # to raise


Action: TypeAlias = (
    Start | Reply | Signal | Record | CountRestart | Say | Finish | Advance | Conclusion
)


class LogEntry(NamedTuple):
    """An event in the search log, None for the beginning, and the search's operations for it."""

    event: SearchEvent | None
    operations: Sequence[Operation]
    error: str | None = None


def resume(
    log: Iterable[LogEntry],
    records: Mapping[int, TrialRecord],
    *,
    max_restarts: int,
    num_places: int,
    starts_once: bool = False,
) -> tuple[State, Sequence[Action]]:
    """Return the state at the beginning of a run, and the actions that settle the records.

    The last runner may have died between an entry in the log and the records that follow from it.
    A script that starts once more runs again, also if its training is over.
    """
    free = tuple(range(num_places))
    turn = _Decisions(State(free=free, max_restarts=max_restarts, starts_once=starts_once))
    exits: dict[int, LogEntry] = {}
    for entry in log:
        created = [each.trial for each in entry.operations if isinstance(each, Create)]
        turn.follow(entry.event, entry.operations, [records[index].id for index in created])
        if isinstance(entry.event, Exited):
            exits[entry.event.trial] = entry
    for index, trial in enumerate(turn.state.trials):
        record = records[index]
        turn.change(index, state=record.state, error=record.error, num_restarts=record.num_restarts)
        if not trial.is_closed:
            turn.record(index, TrialState.PAUSED)
        elif starts_once:
            was_complete = record.state is TrialState.COMPLETED
            turn.change(index, was_complete=was_complete)
            turn.run_again(index)
            turn.record(index, TrialState.COMPLETED if was_complete else TrialState.PAUSED)
        elif index in exits:
            _record_exit(turn, exits[index], is_unwanted=record.control is not None)
        elif record.state in (TrialState.ERROR, TrialState.RUNNING):
            # The code failed, or was killed, after the last report: that part runs again.
            turn.run_again(index)
            turn.record(index, TrialState.PAUSED)
        else:
            turn.record(index, TrialState.COMPLETED)
    return turn.state, turn.actions


def decide(state: State, event: Event) -> tuple[State, Sequence[Action]]:
    """Return the next state after an event, and the resulting actions, in order."""
    turn = _Decisions(state)
    match event:
        case Tick(now):
            _start_trials(turn, now)
        case Started(index, is_complete):
            turn.change(index, was_complete=is_complete)
        case Reported():
            _take_report(turn, event)
        case WorkersEnded():
            _end_workers(turn, event)
        case Signaled():
            _pass_on_signal(turn, event)
        case Requested(control, None):
            _heed_request(turn, control)
        case Requested(control, int(trial)):
            _heed_trial_request(turn, trial, control)
        case Advanced(exited, error, None, failure=None):
            # There would be nothing to show for: --resume tries this trial again.
            turn.change(exited.trial, is_excluded=True)
            turn.record(exited.trial, TrialState.ERROR, error)
        case Advanced():
            _follow_search(turn, event)
    ending = turn.state.ending
    if ending is not None and not isinstance(turn.actions[-1], Advance):
        is_paused = turn.state.trials[ending].state is TrialState.PAUSED
        turn.set(ending=None)
        turn.act(Finish(ending, starts_again=is_paused and not turn.state.is_stopping))
    return turn.state, turn.actions


class _Decisions:
    """A decision while it is made: the state so far, and the actions so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: list[Action] = []

    def act(self, *actions: Action) -> None:
        self.actions += actions

    def set(self, **fields: Any) -> None:
        self.state = self.state._replace(**fields)

    def change(self, index: int, **fields: Any) -> None:
        trials = self.state.trials
        self.set(trials=trials.replaced(index, trials[index]._replace(**fields)))
        if "place" in fields:
            others = {*self.state.running} - {index}
            own = () if fields["place"] is None else (index,)
            self.set(running=tuple(sorted((*others, *own))))

    def record(self, index: int, state: TrialState, error: str | None = None) -> None:
        known = self.state.trials[index]
        self.change(index, state=state, error=error)
        self.act(Record(index, state, error, is_new=(known.state, known.error) != (state, error)))

    def signal_all(self, number: int) -> None:
        self.act(*(Signal(index, number) for index in self.state.running))

    def run_again(self, index: int) -> None:
        """Let a closed trial run once more; an open one gets its turn anyway."""
        if self.state.trials[index].is_closed and index not in self.state.again:
            self.set(again=(*self.state.again, index))

    def run_no_more(self, index: int) -> None:
        self.set(again=tuple(each for each in self.state.again if each != index))

    def advance(self, event: SearchEvent, error: str | None = None) -> None:
        """Let the search know; once it has failed, it is not asked."""
        if self.state.failure is None:
            self.act(Advance(event, error))
        else:
            _complete_event(self, event, error)

    def follow(
        self, event: SearchEvent | None, operations: Sequence[Operation], created: Sequence[int]
    ) -> None:
        """Follow the search: the target of each trial, and the order of the trials."""
        own = None if event is None else event.trial
        order = [index for index in self.state.order if index != own]
        if isinstance(event, Validated):
            self.change(event.trial, is_waiting=True)
        elif isinstance(event, Exited):
            self.change(event.trial, is_closed=True)
        ids, closed = iter(created), set[int]()
        for operation in operations:
            match operation:
                case Create(index):
                    self.set(trials=self.state.trials.replaced(index, SupervisedTrial(next(ids))))
                case Train(index, length):
                    self.change(index, length=length, is_waiting=False)
                    order.insert(0 if index == own else len(order), index)
                case Close(index):
                    self.change(index, is_closed=True)
                    closed.add(index)
        self.set(order=tuple(each for each in order if each not in closed))


def _start_trials(turn: _Decisions, now: float) -> None:
    """Start trials while there are places; conclude if none runs or waits for its time."""
    state, kept, free = turn.state, [], list(turn.state.free)
    for index in () if state.is_stopping else (*state.again, *state.order):
        trial = state.trials[index]
        if trial.place is not None or trial.is_excluded:
            continue
        if not free:
            break
        place = free.pop(0)
        if now < trial.starts_at:
            # Its place is kept: a search must not depend on which trial came in between.
            kept.append(place)
        else:
            turn.change(index, place=place, was_notified_of_end=False)
            turn.change(index, state=TrialState.RUNNING, error=None)  # by the start itself
            turn.act(Start(index, trial.length, place))
            turn.record(index, TrialState.RUNNING)
    turn.set(free=(*kept, *free))
    if not kept and not turn.state.running:
        _conclude(turn)


def _take_report(turn: _Decisions, report: Reported) -> None:
    trial = turn.state.trials[report.trial]
    # A trial that repeats its ending reports a length that the search knows.
    if not trial.is_closed and not trial.is_waiting and trial.length == report.length:
        turn.advance(Validated(*report))
    else:
        _reply(turn, report.trial, report.length)


def _reply(turn: _Decisions, index: int, length: int) -> None:
    """Reply to workers that trained to a length with their next length, or with the end."""
    trial = turn.state.trials[index]
    trains_on = not trial.is_closed and not trial.is_waiting and trial.length > length
    if trains_on and not turn.state.is_stopping:
        turn.act(Reply(index, trial.length))
        turn.record(index, TrialState.RUNNING)
    else:
        turn.change(index, was_notified_of_end=True)
        turn.act(Reply(index, None))


def _follow_search(turn: _Decisions, advanced: Advanced) -> None:
    """Carry out the search's operations at once; a trial that is to train waits for its turn."""
    event, error, operations, created, failure = advanced
    if failure is not None:
        turn.set(failure=failure)
        turn.signal_all(signal.SIGINT)
    else:
        turn.follow(event, operations or (), created)
    for operation in operations or ():
        index = operation.trial
        trial = turn.state.trials[index]
        if trial.place is None and not isinstance(operation, Close):
            turn.record(index, TrialState.PAUSED)
        elif isinstance(operation, Close) and index != event.trial:
            if trial.place is None:
                turn.record(index, TrialState.COMPLETED)
            elif not trial.was_notified_of_end:
                turn.act(Signal(index, signal.SIGINT))
    _complete_event(turn, event, error)


def _complete_event(turn: _Decisions, event: SearchEvent, error: str | None) -> None:
    """Take the actions for the trial of a search event that had to wait for the log."""
    if isinstance(event, Validated):
        _reply(turn, event.trial, event.length)
        return
    trial = turn.state.trials[event.trial]
    if event.reason is not ExitReason.STOPPED:
        turn.act(Say(f"trial {trial.id} failed: {turn.state.last_error}", event.trial))
    _record_exit(turn, LogEntry(event, (), error), is_unwanted=trial.requested_end is not None)


def _record_exit(turn: _Decisions, entry: LogEntry, *, is_unwanted: bool) -> None:
    assert isinstance(entry.event, Exited)
    if entry.event.reason is not ExitReason.STOPPED:
        turn.record(entry.event.trial, TrialState.ERROR, entry.error)
    else:
        state = TrialState.CANCELED if is_unwanted else TrialState.COMPLETED
        turn.record(entry.event.trial, state)


def _end_workers(turn: _Decisions, ended: WorkersEnded) -> None:
    """Decide whether a trial whose workers ended is over, waits, or starts again."""
    index, how = ended.trial, ended.how
    trial = turn.state.trials[index]
    is_orderly = how in (Ending.WELL, Ending.INTERRUPTED)
    assert trial.place is not None
    turn.set(free=(trial.place, *turn.state.free), ending=index)
    turn.change(index, place=None)
    if trial.is_closed and _is_done(turn.state, trial, how):
        turn.run_no_more(index)
        turn.record(index, TrialState.COMPLETED)
    elif trial.requested_end is not None:
        _drop(turn, index)
    elif trial.was_notified_of_end and not trial.is_closed:
        if not is_orderly:
            text = in_one_line(f"trial {trial.id}: {ended.error}", "Its result counts")
            turn.act(Say(text, index))
        turn.record(index, turn.state.stopped_state)
    elif how is Ending.WELL:
        turn.advance(Exited(index, ExitReason.STOPPED))
    elif how is Ending.INTERRUPTED:
        turn.run_again(index)
        turn.change(index, is_excluded=True)
        turn.record(index, turn.state.stopped_state)
    elif how is Ending.INVALID_HP:
        _fail(turn, index, ended.error, ExitReason.INVALID_HP)
    elif how is Ending.CRASHED:
        _restart(turn, ended)
    elif ended.origin is None or turn.state.starts_once:
        if ended.origin is not None:
            again = f"Start the script again: it resumes from {ended.origin}"
            turn.act(Say(in_one_line("the checkpoint is recorded as damaged", again), index))
        _fail(turn, index, ended.error, ExitReason.ERRORED)
    else:  # its checkpoint is damaged
        turn.run_again(index)
        turn.record(index, turn.state.stopped_state)
        text = in_one_line(ended.error, f"Going on from the one before: {ended.origin}")
        turn.act(Say(text, index))


def _is_done(state: State, trial: SupervisedTrial, how: Ending) -> bool:
    """Whether a trial that the search trains no further is over with such an end.

    A script that was interrupted has code left to run behind its training.
    """
    if how is Ending.INTERRUPTED:
        return not state.starts_once
    return how is Ending.WELL or trial.was_complete


def _drop(turn: _Decisions, index: int) -> None:
    """End a trial without workers for good; one that is over stays as it is."""
    if not turn.state.trials[index].is_closed:
        turn.advance(Exited(index, ExitReason.STOPPED))
    elif index in turn.state.again or index == turn.state.ending:
        turn.run_no_more(index)
        turn.record(index, TrialState.CANCELED)


def _restart(turn: _Decisions, ended: WorkersEnded) -> None:
    """Start a trial again that crashed, if that may help."""
    index, error, most = ended.trial, ended.error, turn.state.max_restarts
    trial = turn.state.trials[index]
    if turn.state.is_stopping:
        turn.change(index, is_excluded=True)
        turn.set(last_error=error)
        turn.record(index, TrialState.ERROR, error)
        return
    why = ended.why_certain
    if ended.fault is not None and ended.fault == trial.fault and not ended.made_progress:
        why = "it failed twice in the same way, with no new checkpoint in between"
    turn.change(index, fault=ended.fault)
    if why or trial.num_restarts >= most:
        if why and most:
            turn.act(Say(f"trial {trial.id} is not started again: {why}", index))
        _fail(turn, index, error, ExitReason.ERRORED)
        return
    pause_s = 0.0 if ended.made_progress else trial.next_pause_s
    num_restarts = trial.num_restarts + 1
    turn.run_again(index)
    turn.change(
        index,
        num_restarts=num_restarts,
        next_pause_s=min(pause_s * 2 or _INITIAL_BACKOFF_S, _MAX_BACKOFF_S),
        starts_at=ended.now + pause_s,
    )
    turn.act(CountRestart(index))
    turn.record(index, TrialState.PAUSED, error)
    when = f" in {pause_s:.0f} s" if pause_s else ""
    again = f"It starts again{when} {ended.origin} (restart {num_restarts} of {most})"
    # The lines of a search's trials may be hidden.
    is_shown = ended.is_error_shown and len(turn.state.trials) == 1
    failed = f"trial {trial.id} failed" if is_shown else f"trial {trial.id} failed: {error}"
    turn.act(Say(in_one_line(failed, again), index))


def _fail(turn: _Decisions, index: int, error: str, reason: ExitReason) -> None:
    """End a trial that failed for good."""
    turn.set(last_error=error)
    turn.run_no_more(index)
    recorded = f"InvalidHP: {error}" if reason is ExitReason.INVALID_HP else error
    if turn.state.trials[index].is_closed:
        # It failed after its last report, which counts.
        turn.record(index, TrialState.ERROR, recorded)
    else:
        turn.advance(Exited(index, reason), recorded)


def _pass_on_signal(turn: _Decisions, signaled: Signaled) -> None:
    turn.set(is_interrupted=True)
    if signaled.is_urgent:
        turn.set(was_killed=True)
        turn.signal_all(signal.SIGKILL)
        return
    # Passed on unchanged: a machine that ends gives less time than a person does.
    turn.signal_all(signaled.number)
    is_one = len(turn.state.running) < 2
    what, end = ("the trial checkpoints", "ends") if is_one else ("all trials checkpoint", "end")
    name = signal.Signals(signaled.number).name
    urge = "Ctrl-C again: end now, without a checkpoint"
    turn.act(Say(f"{name}: {what} at the next batch boundary and {end} ({urge})"))


def _heed_request(turn: _Decisions, control: Control) -> None:
    if control is turn.state.control:
        return
    turn.set(control=control)
    if control is Control.KILL:
        turn.act(Say("kill: all trials end now, without a checkpoint"))
        turn.signal_all(signal.SIGKILL)
    else:
        what = "all trials checkpoint at the next batch boundary and end"
        turn.act(Say(f"{control.value}: {what}"))
        turn.signal_all(signal.SIGINT)


def _heed_trial_request(turn: _Decisions, index: int, control: Control) -> None:
    trial = turn.state.trials[index]
    if trial.requested_end is control:
        return
    turn.change(index, requested_end=control)
    name = f"trial {trial.id}"
    if trial.place is None:
        _drop(turn, index)
    elif control is Control.KILL:
        turn.act(Say(f"kill: {name} ends now, without a checkpoint", index))
        turn.act(Signal(index, signal.SIGKILL))
    else:
        what = "checkpoints at the next batch boundary and ends"
        turn.act(Say(f"cancel: {name} {what}", index))
        turn.act(Signal(index, signal.SIGINT))


def _conclude(turn: _Decisions) -> None:
    """End the run, now that no trial runs or waits for its time."""
    state = turn.state
    states = {trial.state for trial in state.trials}
    is_left = any(state.trials[index].state is not TrialState.COMPLETED for index in state.again)
    is_finished = all(trial.is_closed for trial in state.trials) and not is_left
    error = state.last_error
    if len(state.trials) != 1 and error is not None:
        error = f"no trial completed; the last one that failed: {error}"
    if state.failure is not None:
        turn.act(Conclusion(failure=state.failure))
    elif is_finished and TrialState.COMPLETED in states:
        turn.act(Conclusion(TrialState.COMPLETED))
    elif is_finished and TrialState.ERROR not in states:  # each was canceled for itself
        turn.act(Conclusion(TrialState.CANCELED))
    elif is_finished:
        turn.act(Conclusion(TrialState.ERROR, error))
    elif state.stopped_state is TrialState.CANCELED:
        for index, trial in enumerate(state.trials):
            if not trial.is_closed or index in state.again:
                turn.record(index, TrialState.CANCELED)
        turn.act(Conclusion(TrialState.CANCELED))
    elif state.last_error is not None and TrialState.PAUSED not in states:
        turn.act(Conclusion(TrialState.ERROR, error))
    else:
        turn.act(
            Conclusion(
                TrialState.PAUSED,
                was_killed=state.was_killed,
                is_external=state.is_stopping,
            )
        )
