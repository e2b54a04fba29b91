"""Record store of a server, with users, tokens and submissions."""

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
# Prefix by which secret scanners recognize a token.
_PREFIX = "detcore_"
_QUEUED = "QUEUED"
_ENDED = "ENDED"
_QUEUED_AGAIN = (ExperimentState.PAUSED, ExperimentState.ERROR, ExperimentState.CANCELED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user of a server.

    Attributes:
        name: Unique name.
        password_hash: Hash of the password. None: the user cannot log in.
        is_admin: Whether the user may manage other users.
        is_active: Whether the user may log in.
        created_at: Creation time in seconds since 1970.
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
        expires_at: Expiry time in seconds since 1970.
    """

    user_id: int
    user_name: str
    is_admin: bool
    expires_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """State of an experiment that was submitted to a server.

    Attributes:
        user_name: Name of the owner.
        submission_id: Identifier chosen by the client.
        phase: ``"QUEUED"`` while the experiment waits, ``"STARTED"`` while a runner works on it or
            is starting, ``"ENDED"`` afterwards.
        test_mode: Whether the experiment is a smoke test.
        state: State of the experiment.
        control: Pending request to the runner, or None.
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
    """Create a random token."""
    return _PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return the stored digest of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


class ServerDatabase(Database):
    """Records with users, tokens and submitted experiments."""

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
        """Change an experiment's name, description, notes or labels. None keeps a value.

        The configuration changes as well.

        Args:
            experiment_id: Id of the experiment.
            name: Name of the experiment.
            description: A short description.
            notes: Longer notes, which are not part of the configuration.
            labels: New labels, which replace all existing labels.
            add_labels: Labels to add.
            remove_labels: Labels to remove.

        Returns:
            The resulting labels, sorted.

        Raises:
            NotFoundError: If no experiment has that id.
            ConfigError: If the labels are not a list of strings.
        """
        fields = {"name": name, "description": description}
        changes: dict[str, Any] = {key: text for key, text in fields.items() if text is not None}
        added = set(check_strings("labels", add_labels))
        removed = set(check_strings("labels", remove_labels))
        self.get_experiment(experiment_id)  # raises NotFoundError with the known ids
        is_experiment = experiments.c.id == experiment_id
        with self.transaction(write=True) as connection:
            query = select(experiments.c.config).where(is_experiment).with_for_update()
            config = {**(connection.execute(query).scalar() or {}), **changes}
            before = config.get("labels") or ()
            if labels is not None:
                before = check_strings("labels", labels)
            after = sorted(({str(label) for label in before} | added) - removed)
            if labels is not None or added or removed:
                config["labels"] = after
                replace_labels(connection, experiment_id, after)
            columns = {"name": name, "notes": notes}
            texts = {key: text for key, text in columns.items() if text is not None}
            connection.execute(
                update(experiments).where(is_experiment).values(config=config, **texts)
            )
            return after

    def create_user(
        self, name: str, *, password_hash: str | None, is_admin: bool = False
    ) -> UserRecord:
        """Add a user.

        Args:
            name: Unique name.
            password_hash: Hash of the password. None: the user cannot log in.
            is_admin: Whether the user may manage other users.

        Raises:
            DatabaseError: If the name is in use.
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
                f"the user {name!r} already exists in {self.url}.\nChoose another name."
            ) from error
        return self.get_user(name)

    def get_user(self, user: str | int) -> UserRecord:
        """Return a user by name or id.

        Raises:
            NotFoundError: If the user does not exist.
        """
        column = users.c.id if isinstance(user, int) else users.c.name
        with self.transaction(write=False) as connection:
            row = connection.execute(select(users).where(column == user)).fetchone()
        if row is None:
            raise NotFoundError(
                f"no user {user!r} in {self.url}.\nList the users with: detcore user list"
            )
        return UserRecord(**row._mapping)

    def list_users(self) -> list[UserRecord]:
        """Return all users by id."""
        with self.transaction(write=False) as connection:
            rows = connection.execute(select(users).order_by(users.c.id))
            return [UserRecord(**row._mapping) for row in rows]

    def update_user(self, user: str | int, **changed: Any) -> UserRecord:
        """Change a user's ``password_hash``, ``is_admin`` or ``is_active``.

        A new password or deactivation revokes all tokens of the user.

        Raises:
            NotFoundError: If the user does not exist.
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
        """Store a token and delete expired tokens. Return whether the token was stored.

        Args:
            digest: SHA-256 of the token, in hexadecimal digits.
            user_id: Id of the user.
            expires_at: Expiry time in seconds since 1970.
            password_hash: Hash that the password was compared with. The token is not stored if the
                user's hash has changed since.
        """
        with self.transaction(write=True) as connection:
            stored_hash = select(users.c.password_hash).where(users.c.id == user_id)
            if password_hash is not None and connection.scalar(stored_hash) != password_hash:
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
        """Return a valid token with its user, or None.

        Tokens of inactive users are not valid.
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
        """Delete a token if it exists."""
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
        """Queue an experiment, unless it was submitted before.

        Args:
            user_id: Id of the owner.
            submission_id: Identifier chosen by the client, up to 64 characters.
            test_mode: Whether the experiment is a smoke test.
            config: Configuration with defaults, as JSON values.
            config_text: Source of the experiment file.
            place: Called with the new id before other processes see the record. It moves the code
                to its directory and returns the directory. If it raises, nothing is recorded.

        Returns:
            Id of the experiment.
        """
        existing_id = self.find_submission(user_id, submission_id)
        if existing_id is not None:
            return existing_id

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
            # Two attempts of one submission may run concurrently.
            existing_id = self.find_submission(user_id, submission_id)
            if existing_id is None:
                raise
            return existing_id

    def find_submission(self, user_id: int, submission_id: str) -> int | None:
        """Return the id of the experiment with a submission id, or None."""
        query = select(submissions.c.experiment_id).where(
            submissions.c.user_id == user_id, submissions.c.submission_id == submission_id
        )
        with self.transaction(write=False) as connection:
            return connection.scalar(query)

    def get_submission(self, experiment_id: int) -> SubmissionRecord | None:
        """Return the submission of an experiment, or None if it was not submitted."""
        with self.transaction(write=False) as connection:
            row = connection.execute(
                _RECORDS.where(submissions.c.experiment_id == experiment_id)
            ).fetchone()
        return None if row is None else _read_submission(row._mapping)

    def submitters(self, experiment_ids: Sequence[int]) -> dict[int, str]:
        """Return the names of the submitting users by experiment id."""
        query = select(submissions.c.experiment_id, users.c.name).join(users)
        which = submissions.c.experiment_id.in_(experiment_ids)
        with self.transaction(write=False) as connection:
            rows = connection.execute(query.where(which))
            return {row.experiment_id: row.name for row in rows}

    @staticmethod
    def submitted_by(name: str) -> ColumnElement[bool]:
        """Return a condition for ``where`` of `list_experiments`: submitted by a user."""
        submitted_ids = select(submissions.c.experiment_id).join(users).where(users.c.name == name)
        return experiments.c.id.in_(submitted_ids)

    def list_submissions(self, *, phases: Iterable[str]) -> list[SubmissionRecord]:
        """Return the submissions in any of the phases, ordered by experiment id."""
        query = _RECORDS.where(submissions.c.phase.in_(list(phases)))
        with self.transaction(write=False) as connection:
            rows = connection.execute(query.order_by(submissions.c.experiment_id))
            return [_read_submission(row._mapping) for row in rows]

    def set_submission_phase(self, experiment_id: int, phase: str) -> None:
        """Record the phase of a submitted experiment.

        ENDED is recorded only if the experiment does not run, because it may have been resumed.
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
        """Queue a submitted experiment again.

        Returns:
            False if the experiment runs, waits, is complete, or was not submitted.
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
