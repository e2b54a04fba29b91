"""The record store of a server: the records, and its users, tokens and submissions."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from detcore.errors import DatabaseError, NotFoundError
from detcore.records import (
    Database,
    check_strings,
    metadata,
    replace_labels,
)
from detcore.types import Control, ExperimentState

experiments, submissions, tokens, users = (
    metadata.tables[name] for name in ("experiments", "submissions", "tokens", "users")
)
# Lets tools that search logs and repositories for secrets recognize a token.
_PREFIX = "detcore_"
_QUEUED = "QUEUED"
_ENDED = "ENDED"
_QUEUED_AGAIN = (ExperimentState.PAUSED, ExperimentState.ERROR, ExperimentState.CANCELED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user of a server.

    Attributes:
        name: Unique.
        password_hash: The server's hash of the password; None: this user cannot log in.
        is_admin: Whether this user may manage the others.
        is_active: Whether this user may log in.
        created_at: Seconds since 1970.
    """

    id: int
    name: str
    password_hash: str | None = dataclasses.field(repr=False)
    is_admin: bool
    is_active: bool
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The user that a token authenticates.

    Attributes:
        expires_at: Until when; seconds since 1970.
    """

    user_id: int
    user_name: str
    is_admin: bool
    expires_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """An experiment that was submitted to a server, and its state.

    Attributes:
        user_name: Whose it is.
        submission_id: The identifier that its user gave it.
        phase: ``"QUEUED"``: waits for its turn; ``"STARTED"``: a runner works on it, or will;
            ``"ENDED"``: there is nothing to do for it.
        test_mode: Whether it is a smoke run.
        state: The experiment's.
        control: The request to its runner, or None.
    """

    experiment_id: int
    user_id: int
    user_name: str
    submission_id: str
    phase: str
    test_mode: bool
    state: ExperimentState
    control: Control | None


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return _PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return the digest of a token, as it is stored."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


class ServerDatabase(Database):
    """The records, with the users of a server, their tokens and the submitted experiments."""

    def describe_experiment(
        self,
        experiment_id: int,
        *,
        name: str | None = None,
        description: str | None = None,
        notes: str | None = None,
        labels: Iterable[str] | None = None,
        add_labels: Iterable[str] = (),
        remove_labels: Iterable[str] = (),
    ) -> list[str]:
        """Change an experiment's name, description, notes or labels; None keeps a value.

        The configuration changes, too.

        Args:
            experiment_id: Which.
            name: Its name in lists.
            description: A short description.
            notes: A longer text about it; not part of the configuration.
            labels: Replace all that it has.
            add_labels: It has these afterwards.
            remove_labels: It does not have these afterwards.

        Returns:
            Its labels, sorted.

        Raises:
            NotFoundError: If no experiment has that id.
            ConfigError: If the labels are no list of texts.
        """
        given = {"name": name, "description": description}
        changed: dict[str, Any] = {key: text for key, text in given.items() if text is not None}
        added = set(check_strings("labels", add_labels))
        removed = set(check_strings("labels", remove_labels))
        self.get_experiment(experiment_id)  # or an error that lists the known ones
        this = experiments.c.id == experiment_id
        with self.transaction(write=True) as connection:
            query = select(experiments.c.config).where(this).with_for_update()
            config = {**(connection.execute(query).scalar() or {}), **changed}
            before = config.get("labels") or ()
            if labels is not None:
                before = check_strings("labels", labels)
            after = sorted(({str(label) for label in before} | added) - removed)
            if labels is not None or added or removed:
                config["labels"] = after
                replace_labels(connection, experiment_id, after)
            columns = {"name": name, "notes": notes}
            texts = {key: text for key, text in columns.items() if text is not None}
            connection.execute(update(experiments).where(this).values(config=config, **texts))
            return after

    def create_user(
        self, name: str, *, password_hash: str | None, is_admin: bool = False
    ) -> UserRecord:
        """Add a user.

        Args:
            name: Unique.
            password_hash: Hash of the password; None: this user cannot log in.
            is_admin: Whether this user may manage the others.

        Raises:
            DatabaseError: If there is a user of that name.
        """
        try:
            with self.transaction(write=True) as connection:
                values = {
                    "name": name,
                    "password_hash": password_hash,
                    "is_admin": is_admin,
                    "is_active": True,
                    "created_at": time.time(),
                }
                connection.execute(insert(users).values(**values))
        except IntegrityError as error:
            raise DatabaseError(
                f"there is a user {name!r} already in {self.url}.\nChoose another name."
            ) from error
        return self.get_user(name)

    def get_user(self, user: str | int) -> UserRecord:
        """Return a user by name or id.

        Raises:
            NotFoundError: If there is no such user.
        """
        column = users.c.id if isinstance(user, int) else users.c.name
        with self.transaction(write=False) as connection:
            row = connection.execute(select(users).where(column == user)).fetchone()
        if row is None:
            raise NotFoundError(
                f"no user {user!r} in {self.url}.\nSee who there is: detcore user list"
            )
        return UserRecord(**row._mapping)

    def list_users(self) -> list[UserRecord]:
        """Return all users by id."""
        with self.transaction(write=False) as connection:
            rows = connection.execute(select(users).order_by(users.c.id))
            return [UserRecord(**row._mapping) for row in rows]

    def update_user(self, user: str | int, **changed: Any) -> UserRecord:
        """Change a user's ``password_hash``, ``is_admin`` or ``is_active``.

        A user who gets another password, or is no longer active, loses all tokens.

        Raises:
            NotFoundError: If there is no such user.
        """
        record = self.get_user(user)
        with self.transaction(write=True) as connection:
            connection.execute(update(users).where(users.c.id == record.id).values(**changed))
            if "password_hash" in changed or changed.get("is_active") is False:
                connection.execute(delete(tokens).where(tokens.c.user_id == record.id))
        return self.get_user(record.id)

    def add_token(
        self,
        digest: str,
        *,
        user_id: int,
        expires_at: float,
        password_hash: str | None = None,
    ) -> bool:
        """Note a token, and forget those that have expired; return whether it was noted.

        Args:
            digest: SHA-256 of the token, in hexadecimal digits.
            user_id: The user that it authenticates.
            expires_at: Until when; seconds since 1970.
            password_hash: The hash that the password was compared with: the token is not noted if
                the user's hash has changed since.
        """
        with self.transaction(write=True) as connection:
            kept = select(users.c.password_hash).where(users.c.id == user_id)
            if password_hash is not None and connection.scalar(kept) != password_hash:
                return False
            connection.execute(delete(tokens).where(tokens.c.expires_at < time.time()))
            connection.execute(
                insert(tokens).values(
                    digest=digest,
                    user_id=user_id,
                    created_at=time.time(),
                    expires_at=expires_at,
                )
            )
        return True

    def find_token(self, digest: str) -> TokenRecord | None:
        """Return a token that has not expired, with its user, or None.

        Return None also if the user is not active.
        """
        query = (
            select(
                tokens.c.user_id,
                users.c.name.label("user_name"),
                users.c.is_admin,
                tokens.c.expires_at,
            )
            .join(users, users.c.id == tokens.c.user_id)
            .where(tokens.c.digest == digest, tokens.c.expires_at >= time.time())
            .where(users.c.is_active)
        )
        with self.transaction(write=False) as connection:
            row = connection.execute(query).fetchone()
        return None if row is None else TokenRecord(**row._mapping)

    def remove_token(self, digest: str) -> None:
        """Forget a token, or do nothing if it is not known."""
        with self.transaction(write=True) as connection:
            connection.execute(delete(tokens).where(tokens.c.digest == digest))

    def submit_experiment(
        self,
        *,
        user_id: int,
        submission_id: str,
        test_mode: bool,
        config: Mapping[str, object],
        config_text: str,
        place: Callable[[int], str],
    ) -> int:
        """Record an experiment that waits for its turn, unless it was submitted before.

        Args:
            user_id: Whose it is.
            submission_id: The user's identifier of it; up to 64 characters.
            test_mode: Whether it is a smoke run.
            config: The configuration, defaults applied; JSON values.
            config_text: The experiment file as it was written.
            place: Called with the new id, before other processes see the record: puts the code in
                its place, and returns the folder. If it raises, nothing is recorded.

        Returns:
            The id of the experiment.
        """
        known = self.find_submission(user_id, submission_id)
        if known is not None:
            return known

        def record(connection: Connection, experiment_id: int) -> str:
            connection.execute(
                submissions.insert().values(
                    experiment_id=experiment_id,
                    user_id=user_id,
                    submission_id=submission_id,
                    phase=_QUEUED,
                    test_mode=test_mode,
                    created_at=time.time(),
                )
            )
            return place(experiment_id)

        name = str(config.get("name", ""))
        try:
            return self.create_experiment(
                config=config, config_text=config_text, name=name, place=record
            )
        except IntegrityError:
            # Two tries of one submission may be under way at once.
            known = self.find_submission(user_id, submission_id)
            if known is None:
                raise
            return known

    def find_submission(self, user_id: int, submission_id: str) -> int | None:
        """Return the id of the experiment that a user submitted under an identifier, or None."""
        query = select(submissions.c.experiment_id).where(
            submissions.c.user_id == user_id, submissions.c.submission_id == submission_id
        )
        with self.transaction(write=False) as connection:
            return connection.scalar(query)

    def get_submission(self, experiment_id: int) -> SubmissionRecord | None:
        """Return the submission of an experiment; None if it was not submitted."""
        with self.transaction(write=False) as connection:
            row = connection.execute(
                _RECORDS.where(submissions.c.experiment_id == experiment_id)
            ).fetchone()
        return None if row is None else _read_submission(row._mapping)

    def submitters(self, experiment_ids: Sequence[int]) -> dict[int, str]:
        """Return the names of the users who submitted some experiments, by the experiments' ids."""
        query = select(submissions.c.experiment_id, users.c.name).join(users)
        which = submissions.c.experiment_id.in_(experiment_ids)
        with self.transaction(write=False) as connection:
            rows = connection.execute(query.where(which))
            return {row.experiment_id: row.name for row in rows}

    @staticmethod
    def submitted_by(name: str) -> ColumnElement[bool]:
        """Return the condition ``where`` of `list_experiments`: those that a user submitted."""
        theirs = select(submissions.c.experiment_id).join(users).where(users.c.name == name)
        return experiments.c.id.in_(theirs)

    def list_submissions(self, *, phases: Iterable[str]) -> list[SubmissionRecord]:
        """Return the submissions in one of some phases, by the experiments' ids."""
        query = _RECORDS.where(submissions.c.phase.in_(list(phases)))
        with self.transaction(write=False) as connection:
            rows = connection.execute(query.order_by(submissions.c.experiment_id))
            return [_read_submission(row._mapping) for row in rows]

    def set_submission_phase(self, experiment_id: int, phase: str) -> None:
        """Record the phase of a submitted experiment.

        ENDED is recorded only if it does not run: it may have been resumed.
        """
        which = [submissions.c.experiment_id == experiment_id]
        if phase == _ENDED:
            running = select(experiments.c.id).where(
                experiments.c.id == experiment_id,
                experiments.c.state == ExperimentState.RUNNING,
            )
            which.append(submissions.c.experiment_id.not_in(running))
        with self.transaction(write=True) as connection:
            connection.execute(update(submissions).where(*which).values(phase=phase))

    def queue_again(self, experiment_id: int) -> bool:
        """Let a submitted experiment that does not run wait for its turn once more.

        Returns:
            False if it runs, waits or is complete, or was not submitted.
        """
        if self.get_submission(experiment_id) is None:
            return False

        def record(connection: Connection) -> None:
            here = experiments.c.id == experiment_id
            connection.execute(update(experiments).where(here).values(control=None))
            here = submissions.c.experiment_id == experiment_id
            connection.execute(update(submissions).where(here).values(phase=_QUEUED))

        return self.claim_experiment(experiment_id, states=_QUEUED_AGAIN, also=record)


_RECORDS: Select[Any] = (
    select(
        submissions,
        users.c.name.label("user_name"),
        experiments.c.state,
        experiments.c.control,
    )
    .join(users, users.c.id == submissions.c.user_id)
    .join(experiments, experiments.c.id == submissions.c.experiment_id)
)


def _read_submission(row: RowMapping) -> SubmissionRecord:
    values = dict(row)
    del values["created_at"]
    return SubmissionRecord(**values)
