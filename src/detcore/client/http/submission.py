"""Submit experiments to a server, and follow them as if they ran on this machine."""

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
# Small enough for proxies that limit the size of bodies.
_PART_BYTES = 512 << 10
_MAX_STEPS = 2000
# A server restarts within a minute.
_RETRY_TIMEOUT_S = 60.0
_RETRY_INTERVAL_S = 1.0
_POLL_INTERVAL_S = 0.5
_TICK_S = 0.1
# A restart of the server usually takes less time and is not reported.
_NOTICE_AFTER_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submission of an experiment.

    Attributes:
        text: The experiment file (YAML).
        name: Name of the file in messages.
        overrides: Settings by dotted name. Strings are YAML.
        environment: The variables ``DETCORE_CONFIG__...`` of the user's environment.
        test_mode: Whether to run only one batch, one validation and one checkpoint.
        submission_id: Identifies the submission, so that a retry does not start a second
            experiment.
    """

    text: str
    name: str
    overrides: Mapping[str, Any]
    environment: Mapping[str, str]
    test_mode: bool
    submission_id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def from_file(cls, path: Path, **attributes: Any) -> Submission:
        """Create a submission from an experiment file.

        Args:
            path: The file.
            attributes: The attributes other than text and name.

        Raises:
            ConfigError: If the file cannot be read.
        """
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the experiment file {path} cannot be read: {error}") from error
        return cls(text=text, name=str(path), **attributes)


def submit_experiment(
    master: str,
    submission: Submission,
    folder: Path,
    *,
    environment: Environment,
    notice: Callable[[str], None],
) -> tuple[Session, int]:
    """Submit an experiment with the code in a directory.

    Args:
        master: Address of the server.
        submission: The experiment.
        folder: Directory of the code.
        environment: The settings of this process, which locate the user's token.
        notice: Called with each message for the user.

    Returns:
        The session with the server, and the experiment's id.

    Raises:
        DetcoreError: As `open_session`, `pack_directory` and `send_submission`.
    """
    session = open_session(master, environment=environment)
    context = pack_directory(folder)
    with context.file:
        experiment_id = send_submission(session, submission, context, notice=notice)
    notice(f"experiment {experiment_id} was submitted to {session.url}")
    return session, experiment_id


def activate_experiment(master: str, experiment_id: int, *, environment: Environment) -> Session:
    """Resume an experiment on a server unless it is running or complete. Return the session."""
    from detcore.client.determined import Determined

    session = open_session(master, environment=environment)
    if read_events(session, experiment_id, 0)["state"] in ("PAUSED", "ERROR", "CANCELED"):
        with Determined(master) as client:
            client.get_experiment(experiment_id).activate()
    return session


def send_submission(
    session: Session,
    submission: Submission,
    context: PackedContext,
    *,
    notice: Callable[[str], None] = lambda text: None,
) -> int:
    """Submit an experiment and its code, and return its id.

    The server checks the experiment file before the code is uploaded. If the server is unreachable
    or an answer is lost, each request is repeated for a minute. The server starts only one
    experiment.

    Args:
        session: Session with the server.
        submission: The experiment.
        context: The packed code.
        notice: Called with each message for the user.

    Raises:
        ConfigError: If the experiment file has mistakes; the message lists all of them.
        ServerUnavailableError: If the server stays unreachable.
        DetcoreError: The error with which the server rejects the experiment.
    """
    body = {
        "submission_id": submission.submission_id,
        "config": submission.text,
        "name": submission.name,
        "overrides": dict(submission.overrides),
        "environment": dict(submission.environment),
        "test": submission.test_mode,
        "archive": context.digest,
        "archive_size": context.size_bytes,
    }
    for _ in range(_MAX_STEPS):
        answer = _request_patiently(session, notice, "POST", f"{_API}/experiments", json_body=body)
        if answer["experiment_id"] is not None:
            for line in answer["notices"]:
                notice(line)
            return int(answer["experiment_id"])
        if int(answer["uploaded"]) == 0:
            notice(f"uploading {context.num_files} files ({format_bytes(context.size_bytes)})")
        _upload_archive(session, context, int(answer["uploaded"]), notice)
    raise DatabaseError(
        f"the server {session.url} repeatedly requests the code, although it was uploaded.\n"
        "See the log of the server for the reason."
    )


def _upload_archive(
    session: Session, context: PackedContext, offset: int, notice: Callable[[str], None]
) -> None:
    while offset < context.size_bytes:
        context.file.seek(offset)
        answer = _request_patiently(
            session,
            notice,
            "PUT",
            f"{_API}/uploads/{context.digest}",
            body=context.file.read(_PART_BYTES),
            params={"offset": offset},
        )
        offset = int(answer["size"])


def _request_patiently(
    session: Session, notice: Callable[[str], None], method: str, path: str, **request: Any
) -> Any:
    """Send an idempotent request, and retry while the server is unreachable."""
    return _retry_until_available(
        lambda: session.request(method, path, is_repeatable=True, **request),
        notice,
        f"Trying again for {_RETRY_TIMEOUT_S:.0f} s",
        timeout_s=_RETRY_TIMEOUT_S,
    )


def _retry_until_available(
    send: Callable[[], Any],
    notice: Callable[[str], None],
    consequence: str,
    *,
    notice_after_s: float = 0.0,
    timeout_s: float = math.inf,
    wait: Callable[[], None] = lambda: time.sleep(_RETRY_INTERVAL_S),
) -> Any:
    """Repeat a request while the server is unreachable, and notify the user.

    Args:
        send: Sends the request.
        notice: Called when the server has been unreachable for `notice_after_s`, and when it
            responds again.
        consequence: Effect for the user in the meantime.
        notice_after_s: Time before the first notice.
        timeout_s: Maximum time that the server may be unreachable.
        wait: Called between two requests.

    Raises:
        ServerUnavailableError: If the server is unreachable for longer.
    """
    start = time.monotonic()
    is_notified = False
    while True:
        try:
            answer = send()
        except ServerUnavailableError as error:
            elapsed_s = time.monotonic() - start
            if elapsed_s >= timeout_s:
                raise
            if not is_notified and elapsed_s >= notice_after_s:
                notice(in_one_line(str(error).splitlines()[0], consequence))
                is_notified = True
            wait()
        else:
            if is_notified:
                notice("the server responds again")
            return answer


def read_events(session: Session, experiment_id: int, position: int) -> dict[str, Any]:
    """Return the events of an experiment's runner from a position on; see the server's route.

    Raises:
        ServerUnavailableError: If the server does not respond. The request is not repeated.
    """
    answer: dict[str, Any] = session.request(
        "GET",
        f"{_API}/experiments/{experiment_id}/events",
        params={"position": position},
        num_tries=1,
    )
    return answer


class DetachedError(DetcoreError):
    """Raised when Ctrl-C stops following an experiment, which keeps running."""

    def __init__(self, experiment_id: int, url: str) -> None:
        super().__init__(
            f"experiment {experiment_id} continues without being followed.\n"
            f"Follow it again:  detcore run --resume {experiment_id} --master {url}\n"
            f"End it:           detcore experiment cancel {experiment_id} --master {url}"
        )


def follow_experiment(
    session: Session, experiment_id: int, listener: RunListener
) -> ExperimentResult:
    """Pass all events of an experiment's runner to a listener until the experiment ends.

    Requests are retried while the server is unreachable, because the experiment keeps running.

    Args:
        session: Session with the server.
        experiment_id: The experiment.
        listener: Receives the events.

    Raises:
        DetachedError: After Ctrl-C.
        NotFoundError: If the experiment does not exist or was deleted.
        UnauthenticatedError: If the token is no longer valid.
    """
    from detcore.client.http.journal import JournalReplayer

    def wait() -> None:
        deadline = time.monotonic() + _POLL_INTERVAL_S
        while time.monotonic() < deadline:
            listener.tick()
            time.sleep(_TICK_S)

    def send_patiently(send: Callable[[], dict[str, Any]]) -> Any:
        return _retry_until_available(
            send,
            listener.notice,
            "The experiment continues; trying to reach the server again (Ctrl-C: stop following)",
            notice_after_s=_NOTICE_AFTER_S,
            wait=wait,
        )

    replay, position, num_before = JournalReplayer(listener), 0, None
    try:
        while True:
            send = functools.partial(read_events, session, experiment_id, position)
            answer = send_patiently(send)
            for line in answer["lines"]:
                replay(line)
            position = answer["position"]
            if answer["num_before"] not in (None, num_before):
                listener.notice(_describe_place(experiment_id, answer["num_before"]))
            num_before = answer["num_before"]
            if answer["is_over"]:
                break
            if not answer["lines"]:
                wait()
        path = f"{_API}/experiments/{experiment_id}/outcome"
        return _make_result(decode_value(send_patiently(lambda: session.request("GET", path))))
    except KeyboardInterrupt:
        raise DetachedError(experiment_id, session.url) from None


def _describe_place(experiment_id: int, num_before: int) -> str:
    if not num_before:
        return f"experiment {experiment_id} is about to start"
    count = "1 experiment" if num_before == 1 else f"{num_before} experiments"
    return f"experiment {experiment_id} is queued behind {count}"


def _make_result(outcome: dict[str, Any]) -> ExperimentResult:
    from detcore.run import ExperimentResult, TrialResult

    return ExperimentResult(
        experiment_id=outcome["experiment_id"],
        state=ExperimentState(outcome["state"]),
        trials=tuple(TrialResult(**trial) for trial in outcome["trials"]),
        metric=outcome["metric"],
        smaller_is_better=outcome["smaller_is_better"],
        error=outcome["error"],
    )
