"""Submission of experiments to a server, and the events of their runners."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import DatabaseError, in_one_line
from detcore_remote._context import pack
from detcore_remote._credentials import open_session
from detcore_remote._documents import unspell_document
from detcore_remote._refusal import ServerAway

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore_remote._context import PackedContext
    from detcore_remote._session import Session

__all__ = ["HandIn", "hand_in", "read_events", "read_outcome", "submit_folder"]

_API = "/api/detcore/v1"
# Small enough for servers behind a proxy that takes no larger bodies.
_PART_BYTES = 512 << 10
_MOST_STEPS = 2000
# A server that is being restarted is back within a minute.
_PATIENCE_S = 60.0
_PAUSE_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandIn:
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


def hand_in(
    session: Session,
    given: HandIn,
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
        ServerAway: If the server stays unreachable.
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
    for _ in range(_MOST_STEPS):
        said = _patiently(session, notice, "POST", f"{_API}/experiments", json_body=body)
        if said["experiment_id"] is not None:
            for line in said["notices"]:
                notice(line)
            return int(said["experiment_id"])
        if int(said["uploaded"]) == 0:
            notice(f"uploading {context.num_files} files ({_shown(context.size_bytes)})")
        _upload(session, context, int(said["uploaded"]), notice)
    raise DatabaseError(
        f"the server {session.url} asks for the code again and again, although it was uploaded.\n"
        "Its log says why."
    )


def submit_folder(
    master: str,
    folder: Path,
    given: HandIn,
    environment: Environment,
    *,
    notice: Callable[[str], None],
) -> tuple[Session, int]:
    """Submit an experiment with the code in a folder; return the session and the experiment's id.

    Args:
        master: The server; see `normal_url`.
        folder: The folder; see `pack`.
        given: The experiment.
        environment: The settings of this process.
        notice: Called with each message for the user.

    Raises:
        DetcoreError: As `find_credentials`, `pack` and `hand_in` do.
    """
    session = open_session(master, environment=environment)
    context = pack(folder)
    with context.file:
        return session, hand_in(session, given, context, notice=notice)


def _upload(
    session: Session, context: PackedContext, offset: int, notice: Callable[[str], None]
) -> None:
    for _ in range(_MOST_STEPS):
        if offset >= context.size_bytes:
            return
        context.file.seek(offset)
        part = context.file.read(_PART_BYTES)
        said = _patiently(
            session,
            notice,
            "PUT",
            f"{_API}/uploads/{context.digest}",
            body=part,
            params={"offset": offset},
        )
        offset = int(said["size"])


def _patiently(
    session: Session, notice: Callable[[str], None], method: str, path: str, **request: Any
) -> Any:
    """Retry while the server is unreachable; both requests may be sent twice without harm."""
    deadline = time.monotonic() + _PATIENCE_S
    is_told = False
    while True:
        try:
            return session.ask(method, path, is_repeatable=True, **request)
        except ServerAway as error:
            if time.monotonic() >= deadline:
                raise
            if not is_told:
                first = str(error).splitlines()[0]
                notice(in_one_line(first, f"Trying again for {_PATIENCE_S:.0f} s"))
                is_told = True
        time.sleep(_PAUSE_S)


def read_events(session: Session, experiment_id: int, position: int) -> dict[str, Any]:
    """Return the events of an experiment's runner from a position on; see the server's route.

    Raises:
        ServerAway: If the server does not answer; the request is not repeated.
    """
    said: dict[str, Any] = session.ask(
        "GET",
        f"{_API}/experiments/{experiment_id}/events",
        params={"position": position},
        num_tries=1,
    )
    return said


def read_outcome(session: Session, experiment_id: int) -> dict[str, Any]:
    """Return the progress of an experiment's trials; see the server's route."""
    said: dict[str, Any] = session.ask("GET", f"{_API}/experiments/{experiment_id}/outcome")
    found: dict[str, Any] = unspell_document(said)
    return found


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} KB"
