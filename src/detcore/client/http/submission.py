"""Submission of experiments to a server, and following them as if they ran here."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.client.http.credentials import open_session
from detcore.client.http.http_session import ServerUnavailableError
from detcore.client.http.packed_context import pack_directory
from detcore.client.http.wire_documents import decode_value
from detcore.contract.errors import ConfigError, DatabaseError, DetcoreError, in_one_line
from detcore.record_descriptions import format_bytes
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from pathlib import Path

    from detcore.client.http.http_session import Session
    from detcore.client.http.packed_context import PackedContext
    from detcore.environment import Environment
    from detcore.run import ExperimentResult, RunListener


_API = "/api/detcore/v1"
# Small enough for servers behind a proxy that takes no larger bodies.
_PART_BYTES = 512 << 10
_MAX_STEPS = 2000
# A server that is being restarted is back within a minute.
_RETRY_TIMEOUT_S = 60.0
_RETRY_INTERVAL_S = 1.0
_POLL_INTERVAL_S = 0.5
_TICK_S = 0.1
# A server that is restarted is away for less.
_SAID_AFTER_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission of an experiment.

    Attributes:
        text: The experiment file (YAML).
        name: Name of the file in messages about its mistakes.
        overrides: Settings by dotted name; texts are YAML.
        environment: The variables ``DETCORE_CONFIG__...`` of the user's environment.
        test_mode: One batch, one validation, one checkpoint.
        submission_id: Identifies the submission, so that a second try does not start a second
            experiment.
    """

    text: str
    name: str
    overrides: Mapping[str, Any]
    environment: Mapping[str, str]
    test_mode: bool
    submission_id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def from_file(cls, path: Path, **rest: Any) -> Submission:
        """Make one of an experiment file.

        Args:
            path: The file.
            rest: The other attributes but for its text and name.

        Raises:
            ConfigError: If it cannot be read.
        """
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the experiment file {path} cannot be read: {error}") from error
        return cls(text=text, name=str(path), **rest)


def submit_experiment(
    master: str,
    given: Submission,
    folder: Path,
    *,
    environment: Environment,
    notice: Callable[[str], None],
) -> tuple[Session, int]:
    """Submit an experiment with the code in a folder.

    Args:
        master: Address of the server.
        given: The experiment.
        folder: Its code.
        environment: Where the user's token is.
        notice: Called with each message for the user.

    Returns:
        The session with the server, and the experiment's id.

    Raises:
        DetcoreError: As `open_session`, `pack_directory` and `send_submission`.
    """
    session = open_session(master, environment=environment)
    context = pack_directory(folder)
    with context.file:
        experiment_id = send_submission(session, given, context, notice=notice)
    notice(f"experiment {experiment_id} was handed in to {session.url}")
    return session, experiment_id


def activate_experiment(master: str, experiment_id: int, *, environment: Environment) -> Session:
    """Let a server continue an experiment, unless it runs or is complete; return the session."""
    from detcore.client.determined import Determined

    session = open_session(master, environment=environment)
    if read_events(session, experiment_id, 0)["state"] in ("PAUSED", "ERROR", "CANCELED"):
        with Determined(master) as client:
            client.get_experiment(experiment_id).activate()
    return session


def send_submission(
    session: Session,
    given: Submission,
    context: PackedContext,
    *,
    notice: Callable[[str], None] = lambda text: None,
) -> int:
    """Submit an experiment and its code; return its id.

    The server checks the experiment file before the code is uploaded. While the server is
    unreachable, or if an answer is lost, each request is repeated for a minute; the server starts
    one experiment all the same.

    Args:
        session: Session with the server.
        given: The experiment.
        context: Its code.
        notice: Called with each message for the user.

    Raises:
        ConfigError: If the experiment file has mistakes; the message lists all.
        ServerUnavailableError: If the server stays unreachable.
        DetcoreError: The error with which the server refuses it.
    """
    body = {
        "submission_id": given.submission_id,
        "config": given.text,
        "name": given.name,
        "overrides": dict(given.overrides),
        "environment": dict(given.environment),
        "test": given.test_mode,
        "archive": context.digest,
        "archive_size": context.size_bytes,
    }
    for _ in range(_MAX_STEPS):
        said = _patiently(session, notice, "POST", f"{_API}/experiments", json_body=body)
        if said["experiment_id"] is not None:
            for line in said["notices"]:
                notice(line)
            return int(said["experiment_id"])
        if int(said["uploaded"]) == 0:
            notice(f"uploading {context.num_files} files ({format_bytes(context.size_bytes)})")
        _upload(session, context, int(said["uploaded"]), notice)
    raise DatabaseError(
        f"the server {session.url} asks for the code again and again, although it was uploaded.\n"
        "Its log says why."
    )


def _upload(
    session: Session, context: PackedContext, offset: int, notice: Callable[[str], None]
) -> None:
    while offset < context.size_bytes:
        context.file.seek(offset)
        said = _patiently(
            session,
            notice,
            "PUT",
            f"{_API}/uploads/{context.digest}",
            body=context.file.read(_PART_BYTES),
            params={"offset": offset},
        )
        offset = int(said["size"])


def _patiently(
    session: Session, notice: Callable[[str], None], method: str, path: str, **request: Any
) -> Any:
    """Retry while the server is unreachable; both requests may be sent twice without harm."""
    return _ask_until_back(
        lambda: session.request(method, path, is_repeatable=True, **request),
        notice,
        f"Trying again for {_RETRY_TIMEOUT_S:.0f} s",
        timeout_s=_RETRY_TIMEOUT_S,
    )


def _ask_until_back(
    ask: Callable[[], Any],
    notice: Callable[[str], None],
    consequence: str,
    *,
    notice_after_s: float = 0.0,
    timeout_s: float = math.inf,
    wait: Callable[[], None] = lambda: time.sleep(_RETRY_INTERVAL_S),
) -> Any:
    """Ask a server, again and again while it is unreachable, and tell the user about that.

    Args:
        ask: Sends the request.
        notice: Called when the server has been unreachable for a while, and when it is back.
        consequence: The effect meanwhile, for the user.
        notice_after_s: The length of that while.
        timeout_s: For how long the server may be unreachable.
        wait: Called between two requests.

    Raises:
        ServerUnavailableError: If it is unreachable for longer.
    """
    away_since = time.monotonic()
    is_told = False
    while True:
        try:
            answer = ask()
        except ServerUnavailableError as error:
            away_s = time.monotonic() - away_since
            if away_s >= timeout_s:
                raise
            if not is_told and away_s >= notice_after_s:
                notice(in_one_line(str(error).splitlines()[0], consequence))
                is_told = True
            wait()
        else:
            if is_told:
                notice("the server is back")
            return answer


def read_events(session: Session, experiment_id: int, position: int) -> dict[str, Any]:
    """Return the events of an experiment's runner from a position on; see the server's route.

    Raises:
        ServerUnavailableError: If the server does not answer; the request is not repeated.
    """
    said: dict[str, Any] = session.request(
        "GET",
        f"{_API}/experiments/{experiment_id}/events",
        params={"position": position},
        num_tries=1,
    )
    return said


class DetachedError(DetcoreError):
    """An experiment is no longer followed, because of Ctrl-C; it keeps running."""

    def __init__(self, experiment_id: int, url: str) -> None:
        super().__init__(
            f"experiment {experiment_id} continues without being followed.\n"
            f"Follow it again:  detcore run --resume {experiment_id} --master {url}\n"
            f"End it:           detcore experiment cancel {experiment_id} --master {url}"
        )


def follow_experiment(
    session: Session, experiment_id: int, listener: RunListener
) -> ExperimentResult:
    """Pass all events of an experiment's runner to a listener, until the experiment ends.

    Retry while the server is unreachable: the experiment keeps running.

    Args:
        session: Asks the server.
        experiment_id: Which experiment.
        listener: Receives the events.

    Raises:
        DetachedError: After Ctrl-C.
        NotFoundError: If there is no such experiment, or no more.
        UnauthenticatedError: If the token is no longer good.
    """
    from detcore.client.http.journal import JournalReplayer

    def wait() -> None:
        deadline = time.monotonic() + _POLL_INTERVAL_S
        while time.monotonic() < deadline:
            listener.tick()
            time.sleep(_TICK_S)

    def ask_patiently(ask: Callable[[], dict[str, Any]]) -> Any:
        return _ask_until_back(
            ask,
            listener.notice,
            "The experiment continues; trying to reach the server again (Ctrl-C: stop following)",
            notice_after_s=_SAID_AFTER_S,
            wait=wait,
        )

    replay, position, num_before = JournalReplayer(listener), 0, None
    try:
        while True:
            said = ask_patiently(functools.partial(read_events, session, experiment_id, position))
            for line in said["lines"]:
                replay(line)
            position = said["position"]
            if said["num_before"] not in (None, num_before):
                listener.notice(_describe_place(experiment_id, said["num_before"]))
            num_before = said["num_before"]
            if said["is_over"]:
                break
            if not said["lines"]:
                wait()
        path = f"{_API}/experiments/{experiment_id}/outcome"
        return _result(decode_value(ask_patiently(lambda: session.request("GET", path))))
    except KeyboardInterrupt:
        raise DetachedError(experiment_id, session.url) from None


def _describe_place(experiment_id: int, num_before: int) -> str:
    if not num_before:
        return f"experiment {experiment_id} is about to start"
    others = "1 experiment" if num_before == 1 else f"{num_before} experiments"
    return f"experiment {experiment_id} waits for its turn: {others} before it"


def _result(said: dict[str, Any]) -> ExperimentResult:
    from detcore.run import ExperimentResult, TrialResult

    return ExperimentResult(
        experiment_id=said["experiment_id"],
        state=ExperimentState(said["state"]),
        trials=tuple(TrialResult(**trial) for trial in said["trials"]),
        metric=said["metric"],
        smaller_is_better=said["smaller_is_better"],
        error=said["error"],
    )
