"""Following an experiment that a server runs, as if it were run here."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from detcore.errors import DetcoreError
from detcore.runner import ExperimentResult, TrialResult
from detcore.types import ExperimentState
from detcore_remote._journal import replay
from detcore_remote._refusal import ServerAway
from detcore_remote._submit import read_events, read_outcome

if TYPE_CHECKING:
    from detcore.runner import RunListener
    from detcore_remote._session import Session

__all__ = ["Detached", "follow"]

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


class _Following:
    """One experiment that is followed."""

    def __init__(self, session: Session, experiment_id: int, listener: RunListener) -> None:
        self._session = session
        self._id = experiment_id
        self._listener = listener
        self._tell = replay(listener)
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
