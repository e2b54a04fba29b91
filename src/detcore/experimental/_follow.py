"""Following an experiment that a server runs, as if it were run here."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import DetcoreError
from detcore.launch import WorkerEvent
from detcore.remote import ServerAway, read_events, read_outcome
from detcore.runner import ExperimentResult, TrialResult, TrialStatus
from detcore.types import ExperimentState, TrialInfo, TrialState

if TYPE_CHECKING:
    from detcore.remote import Session
    from detcore.runner import RunListener

__all__ = ["Detached", "PrintingListener", "follow"]

_LOOK_S = 0.5
_TICK_S = 0.1
# A server that is restarted is away for less.
_SAID_AFTER_S = 3.0


class Detached(DetcoreError):
    """An experiment is no longer followed, because of Ctrl-C; it keeps running.

    Attributes:
        experiment_id: Which one.
    """

    def __init__(self, experiment_id: int, url: str) -> None:
        super().__init__(
            f"experiment {experiment_id} continues without being followed.\n"
            f"Follow it again:  detcore run --resume {experiment_id} --master {url}\n"
            f"End it:           detcore experiment cancel {experiment_id} --master {url}"
        )
        self.experiment_id = experiment_id


def follow(session: Session, experiment_id: int, listener: RunListener) -> ExperimentResult:
    """Pass all events of an experiment's runner to a listener, until the experiment ends.

    Retry while the server is unreachable: the experiment keeps running.

    Args:
        session: Asks the server.
        experiment_id: Which experiment.
        listener: Receives the events.

    Raises:
        Detached: After Ctrl-C.
        NotFoundError: If there is no such experiment, or no more.
        UnauthenticatedError: If the token is no longer good.
    """
    try:
        _Following(session, experiment_id, listener).run()
        return _result(_outcome(session, experiment_id, listener))
    except KeyboardInterrupt:
        raise Detached(experiment_id, session.url) from None


class _Replayer:
    """Passes the lines of a journal to a listener."""

    def __init__(self, listener: RunListener) -> None:
        self._listener = listener
        self._infos: dict[int, TrialInfo] = {}

    def __call__(self, line: str) -> None:
        try:
            said = json.loads(line)
            tell = getattr(self, f"_{said.pop('type')}", None)
        except (ValueError, KeyError, AttributeError, TypeError):
            return  # cut by a crash of the machine
        if tell is not None:  # None: of a newer release
            tell(**said)

    def _search_started(self, config: dict[str, Any]) -> None:
        self._listener.search_started(config)

    def _trial_changed(self, **fields: Any) -> None:
        self._listener.trial_changed(
            TrialStatus(**{**fields, "state": TrialState(fields["state"])})
        )

    def _search_progress(self, progress: float, planned_length: int = 0) -> None:
        self._listener.search_progress(progress, planned_length)

    def _trial_started(self, info: dict[str, Any], pid: int) -> None:
        slots = info.pop("slots_per_trial")
        made = TrialInfo(
            **info,
            trial_seed=0,
            config={"resources": {"slots_per_trial": slots}},
            model_dir="",
            trial_dir="",
        )
        self._infos[made.trial_id] = made
        self._listener.trial_started(made, pid=pid)

    def _event(self, trial_id: int, event: str, fields: dict[str, Any]) -> None:
        info = self._infos.get(trial_id)
        if info is not None:
            self._listener.event(info, WorkerEvent(event, fields))

    def _output(self, trial_id: int, stream: str, line: str, rank: int) -> None:
        info = self._infos.get(trial_id)
        if info is not None:
            self._listener.output(info, stream, line, rank=rank)

    def _notice(self, text: str) -> None:
        self._listener.notice(text)


class _Following:
    """One experiment that is followed."""

    def __init__(self, session: Session, experiment_id: int, listener: RunListener) -> None:
        self._session = session
        self._id = experiment_id
        self._listener = listener
        self._tell = _Replayer(listener)
        self._position = 0
        self._away_since: float | None = None
        self._is_away_told = False
        self._num_before: int | None = None

    def run(self) -> None:
        while True:
            said = self._read()
            if said is not None:
                for line in said["lines"]:
                    self._tell(line)
                self._position = said["position"]
                self._tell_place(said["num_before"])
                if said["is_over"]:
                    return
                if said["lines"]:
                    continue
            self._wait()

    def _read(self) -> dict[str, Any] | None:
        """Return the new events; None while the server is unreachable."""
        try:
            said = read_events(self._session, self._id, self._position)
        except ServerAway as error:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if not self._is_away_told and now - self._away_since >= _SAID_AFTER_S:
                self._is_away_told = True
                self._listener.notice(
                    f"{str(error).splitlines()[0]}\nThe experiment continues; trying to reach the "
                    "server again (Ctrl-C: stop following)"
                )
            return None
        if self._is_away_told:
            self._listener.notice("the server is back")
        self._away_since, self._is_away_told = None, False
        return said

    def _tell_place(self, num_before: int | None) -> None:
        if num_before is not None and num_before != self._num_before:
            others = "experiment" if num_before == 1 else "experiments"
            self._listener.notice(
                f"experiment {self._id} waits for its turn: {num_before} {others} before it"
                if num_before
                else f"experiment {self._id} is about to start"
            )
        self._num_before = num_before

    def _wait(self) -> None:
        deadline = time.monotonic() + _LOOK_S
        while time.monotonic() < deadline:
            self._listener.tick()
            time.sleep(_TICK_S)


def _outcome(session: Session, experiment_id: int, listener: RunListener) -> dict[str, Any]:
    while True:
        with contextlib.suppress(ServerAway):
            return read_outcome(session, experiment_id)
        listener.tick()
        time.sleep(_LOOK_S)


def _result(said: dict[str, Any]) -> ExperimentResult:
    return ExperimentResult(
        experiment_id=said["experiment_id"],
        state=ExperimentState(said["state"]),
        trials=tuple(TrialResult(**trial) for trial in said["trials"]),
        metric=said["metric"],
        smaller_is_better=said["smaller_is_better"],
        error=said["error"],
    )


class PrintingListener:
    """A `detcore.runner.RunListener` that prints starts, validations, checkpoints and output."""

    def __init__(self) -> None:
        self._is_search = False

    def search_started(self, config: Mapping[str, Any]) -> None:
        """Take note of whether lines have to say which trial they are of."""
        self._is_search = config["searcher"]["name"] != "single"

    def trial_changed(self, status: TrialStatus) -> None:
        """Print what went wrong, if something did."""
        if status.error:
            _say(f"trial {status.trial_id}: {status.error.splitlines()[0]}")

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Not shown: the lines of the trials tell."""

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Print where the trial starts, and with which hyperparameters."""
        at = f"batch {info.steps_completed}" if info.latest_checkpoint else "the start"
        what = f"  {_metrics(info.hparams)}" if self._is_search else ""
        _say(f"experiment {info.experiment_id}, trial {info.trial_id}: from {at}{what}")

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Print validations and checkpoints."""
        fields = event.fields
        at = f"trial {info.trial_id}: batch {fields.get('steps_completed', '?')}"
        if event.type == "validation":
            _say(f"{at}: validation: {_metrics(fields['metrics'])}")
        elif event.type == "checkpoint":
            _say(f"{at}: checkpoint saved: {fields['uuid']}")

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Print a line of a worker."""
        _say(f"[trial {info.trial_id}] {line}" if self._is_search else line)

    def notice(self, text: str) -> None:
        """Print it."""
        _say(text)

    def tick(self) -> None:
        """Nothing is redrawn."""


def _say(text: str) -> None:
    # One write for text and end: other threads print too.
    print(f"{text}\n", end="", flush=True)


def _metrics(metrics: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )
