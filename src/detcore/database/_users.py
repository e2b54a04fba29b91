"""Queries of users, and of the tokens that authenticate them to a server."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from detcore._records import TokenRecord, UserRecord, read_row
from detcore.database._queries import Queries, now, unused_id
from detcore.database._schema import tokens, users
from detcore.database._translate import shown_url
from detcore.errors import DatabaseError, NotFoundError

__all__ = ["UserQueries", "new_token", "token_digest"]

# Lets tools that search logs and repositories for secrets recognize a token.
_PREFIX = "detcore_"


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return _PREFIX + secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return the digest of a token, as it is stored."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


class UserQueries(Queries):
    """Methods of `Database` about users and tokens."""

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
            with self._write() as connection:
                values = {
                    **unused_id(connection, users),
                    "name": name,
                    "password_hash": password_hash,
                    "is_admin": is_admin,
                    "is_active": True,
                    "created_at": now(),
                }
                connection.execute(insert(users).values(**values))
        except IntegrityError as error:
            raise DatabaseError(
                f"there is a user {name!r} already in {shown_url(self._engine.url)}.\n"
                "Choose another name."
            ) from error
        return self.get_user(name)

    def get_user(self, user: str | int) -> UserRecord:
        """Return a user by name or id.

        Raises:
            NotFoundError: If there is no such user.
        """
        column = users.c.id if isinstance(user, int) else users.c.name
        with self._read() as connection:
            row = connection.execute(select(users).where(column == user)).fetchone()
        if row is None:
            raise NotFoundError(
                f"no user {user!r} in {shown_url(self._engine.url)}.\n"
                "See who there is: detcore user list"
            )
        return read_row(UserRecord, row)

    def list_users(self) -> list[UserRecord]:
        """Return all users by id."""
        with self._read() as connection:
            rows = connection.execute(select(users).order_by(users.c.id))
            return [read_row(UserRecord, row) for row in rows]

    def update_user(self, user: str | int, **changed: Any) -> UserRecord:
        """Change a user's ``password_hash``, ``is_admin`` or ``is_active``.

        A user who gets another password, or is no longer active, loses all tokens.

        Raises:
            NotFoundError: If there is no such user.
        """
        record = self.get_user(user)
        with self._write() as connection:
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
        trial_id: int | None = None,
        password_hash: str | None = None,
    ) -> bool:
        """Note a token, and forget those that have expired; return whether it was noted.

        Args:
            digest: SHA-256 of the token, in hexadecimal digits.
            user_id: The user that it authenticates.
            expires_at: Until when; seconds since 1970.
            trial_id: The only trial whose workers may use it.
            password_hash: The hash that the password was compared with: the token is not noted if
                the user's hash has changed since.
        """
        with self._write() as connection:
            kept = select(users.c.password_hash).where(users.c.id == user_id)
            if password_hash is not None and connection.scalar(kept) != password_hash:
                return False
            connection.execute(delete(tokens).where(tokens.c.expires_at < now()))
            connection.execute(
                insert(tokens).values(
                    digest=digest,
                    user_id=user_id,
                    trial_id=trial_id,
                    created_at=now(),
                    expires_at=expires_at,
                )
            )
        return True

    def extend_token(self, digest: str, *, expires_at: float) -> bool:
        """Let a token be good for longer; return whether it is known."""
        with self._write() as connection:
            found = connection.execute(
                update(tokens).where(tokens.c.digest == digest).values(expires_at=expires_at)
            )
        return found.rowcount > 0

    def find_token(self, digest: str) -> TokenRecord | None:
        """Return a token that has not expired, with its user, or None.

        Return None also if the user is not active.
        """
        with self._read() as connection:
            row = connection.execute(
                select(tokens, users.c.name.label("user_name"), users.c.is_admin)
                .join(users, users.c.id == tokens.c.user_id)
                .where(tokens.c.digest == digest, tokens.c.expires_at >= now(), users.c.is_active)
            ).fetchone()
        if row is None:
            return None
        return read_row(TokenRecord, row)

    def remove_token(self, digest: str) -> None:
        """Forget a token, or do nothing if it is not known."""
        with self._write() as connection:
            connection.execute(delete(tokens).where(tokens.c.digest == digest))

    def remove_trial_tokens(self, trial_id: int) -> None:
        """Forget the tokens of a trial's workers."""
        with self._write() as connection:
            connection.execute(delete(tokens).where(tokens.c.trial_id == trial_id))
