"""Logging in and out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.to_thread
from pydantic import BaseModel, Field

from detcore.database import new_token, token_digest
from detcore.errors import ForbiddenError, LogInThrottledError, NotFoundError
from detcore_server._passwords import is_password

if TYPE_CHECKING:
    from detcore.database import UserRecord
    from detcore_server._state import ServerState

__all__ = ["LoggedIn", "check_password", "issue_token", "log_in", "log_out"]


class LoggedIn(BaseModel):
    """A token, and when it expires (seconds since 1970)."""

    token: str = Field(repr=False)
    expires_at: float
    name: str = ""
    is_admin: bool = False


async def log_in(
    state: ServerState, name: str, password: str, *, is_prehashed: bool, address: str
) -> LoggedIn:
    """Return a new token for a user's name and password.

    Args:
        state: The server.
        name: Name of the user.
        password: The user's password.
        is_prehashed: Whether the password is a result of `prehash`.
        address: Address of the client; see `address_of`.

    Raises:
        ForbiddenError: If there is no such user, or the password is wrong; it does not say which.
        LogInThrottledError: If too many wrong passwords were tried.
    """
    user = await check_password(state, name, password, is_prehashed=is_prehashed, address=address)
    return await anyio.to_thread.run_sync(_issue, state, user, None, None)


async def check_password(
    state: ServerState, name: str, password: str, *, is_prehashed: bool, address: str
) -> UserRecord:
    """Return the user with a name and password.

    Raises:
        ForbiddenError: If there is no such user, or the password is wrong; it does not say which.
        LogInThrottledError: If too many wrong passwords were tried.
    """
    wait_s = state.throttle.begin(name, address)
    if wait_s:
        raise LogInThrottledError(
            f"too many attempts to log in: try again in {wait_s} seconds.", retry_after_s=wait_s
        )
    user = await anyio.to_thread.run_sync(
        _whose, state, name, password, is_prehashed, limiter=state.hashing
    )
    if user is None:
        raise ForbiddenError("invalid credentials")
    state.throttle.succeed(name, address)
    return user


def _whose(state: ServerState, name: str, password: str, is_prehashed: bool) -> UserRecord | None:
    try:
        user = state.database.get_user(name)
    except NotFoundError:
        user = None
    known = user.password_hash if user is not None and user.is_active else None
    # Hash even for unknown users, so that timing does not reveal which accounts exist.
    is_right = is_password(password, known, is_prehashed=is_prehashed)
    return user if is_right else None


def issue_token(
    state: ServerState,
    user_id: int,
    *,
    trial_id: int | None = None,
    lifetime_s: float | None = None,
) -> LoggedIn:
    """Make a token for a user, or for the workers of a trial.

    Args:
        state: The server.
        user_id: The user.
        trial_id: The only trial that the token is valid for.
        lifetime_s: How long it is valid; default: the server's setting.
    """
    return _issue(state, state.database.get_user(user_id), trial_id, lifetime_s)


def _issue(
    state: ServerState, user: UserRecord, trial_id: int | None, lifetime_s: float | None
) -> LoggedIn:
    token = new_token()
    expires_at = time.time() + (lifetime_s or state.settings.token_lifetime_s)
    is_noted = state.database.add_token(
        token_digest(token),
        user_id=user.id,
        expires_at=expires_at,
        trial_id=trial_id,
        password_hash=user.password_hash,
    )
    if not is_noted:
        raise ForbiddenError("invalid credentials")  # it was changed a moment ago
    return LoggedIn(token=token, expires_at=expires_at, name=user.name, is_admin=user.is_admin)


def log_out(state: ServerState, token: str) -> None:
    """Revoke a token."""
    state.database.remove_token(token_digest(token))
    state.tokens.drop()
