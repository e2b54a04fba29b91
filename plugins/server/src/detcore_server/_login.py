"""Logging in and out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio.to_thread
from pydantic import BaseModel, Field

from detcore.errors import ForbiddenError, LogInThrottledError, NotFoundError
from detcore_server._database import new_token, token_digest
from detcore_server._passwords import is_password

if TYPE_CHECKING:
    from detcore_server._database import UserRecord
    from detcore_server._state import ServerState


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
    return await anyio.to_thread.run_sync(_issue, state, user)


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


def _issue(state: ServerState, user: UserRecord) -> LoggedIn:
    token = new_token()
    expires_at = time.time() + state.settings.token_lifetime_s
    is_noted = state.database.add_token(
        token_digest(token),
        user_id=user.id,
        expires_at=expires_at,
        password_hash=user.password_hash,
    )
    if not is_noted:
        raise ForbiddenError("invalid credentials")  # it was changed a moment ago
    return LoggedIn(token=token, expires_at=expires_at, name=user.name, is_admin=user.is_admin)


def log_out(state: ServerState, token: str) -> None:
    """Revoke a token."""
    state.database.remove_token(token_digest(token))
