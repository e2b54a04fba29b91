"""User accounts: names, passwords, permissions, login and logout.

Passwords are stored as Argon2 hashes of a first hash, which Determined's clients send instead of
the password.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import argon2
from pydantic import BaseModel, Field

from detcore.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    TooManyLoginAttemptsError,
    describe,
)
from detcore_server.server_database import new_token, token_digest

if TYPE_CHECKING:
    from detcore_server.server_database import TokenRecord, UserRecord
    from detcore_server.server_state import ServerState


MAX_NAME = 64
MAX_PASSWORD = 1024
_MIN_PASSWORD = 8
# SHA-512 in hexadecimal digits. See `prehash`.
_PREHASHED = "[0-9a-f]{128}"
# Determined's clients send SHA-512 of this salt and the password, never the password.
_SALT = "GubPEmmotfiK9TMD6Zdw"


def prehash(password: str) -> str:
    """Return the hash that Determined's clients send, or "" for an empty password."""
    if not password:
        return ""
    return hashlib.sha512((_SALT + password).encode(errors="surrogatepass")).hexdigest()


def hash_password(password: str, *, is_prehashed: bool = False) -> str:
    """Compute the stored hash of a password.

    Args:
        password: The password.
        is_prehashed: Whether it is a result of `prehash`.
    """
    return argon2.PasswordHasher().hash(password if is_prehashed else prehash(password))


def is_password(password: str, kept: str | None, *, is_prehashed: bool = False) -> bool:
    """Whether a password matches a stored hash. False for None, after the same time."""
    hasher = argon2.PasswordHasher()
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    # No password matches this hash.
    unmatched = f"$argon2id$v=19${costs}${'A' * 22}${'A' * 43}"
    try:
        hasher.verify(kept or unmatched, password if is_prehashed else prehash(password))
    except argon2.exceptions.VerificationError:
        return False
    return kept is not None


def check_name(name: str) -> str:
    """Check the name of a new user, and return it.

    Raises:
        InvalidArgumentError: If the name is invalid.
    """
    if name and len(name) <= MAX_NAME and name.isprintable() and name == name.strip():
        return name
    raise InvalidArgumentError(
        f"invalid user name {describe(name)}: a name has 1 to {MAX_NAME} printable characters "
        "and no leading or trailing space."
    )


def check_new_password(password: str, *, is_prehashed: bool = False) -> str:
    """Check a new password, and return it.

    Args:
        password: The password.
        is_prehashed: Whether it is a result of `prehash`.

    Raises:
        InvalidArgumentError: If its length is invalid. The message does not contain the password.
    """
    if is_prehashed:
        if re.fullmatch(_PREHASHED, password):
            return password
        raise InvalidArgumentError("a hashed password has 128 hexadecimal digits")
    if _MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        return password
    raise InvalidArgumentError(
        f"the password has {len(password)} characters; the allowed range is {_MIN_PASSWORD} to "
        f"{MAX_PASSWORD}."
    )


async def add_user(
    state: ServerState,
    name: str,
    password: str,
    *,
    is_admin: bool = False,
    is_prehashed: bool = False,
) -> UserRecord:
    """Create an active user.

    Args:
        state: The server.
        name: Name of the user.
        password: The user's password.
        is_admin: Whether the user is an administrator.
        is_prehashed: Whether the password is a result of `prehash`.

    Raises:
        InvalidArgumentError: If the name or the password is invalid.
        DatabaseError: If the user already exists.
    """
    check_name(name)
    check_new_password(password, is_prehashed=is_prehashed)

    def run() -> UserRecord:
        password_hash = hash_password(password, is_prehashed=is_prehashed)
        return state.database.create_user(name, password_hash=password_hash, is_admin=is_admin)

    return await anyio.to_thread.run_sync(run, limiter=state.hashing)


async def change_user(
    state: ServerState,
    requester: TokenRecord,
    user_id: int,
    *,
    password: str | None = None,
    is_active: bool | None = None,
    is_admin: bool | None = None,
    is_prehashed: bool = False,
) -> UserRecord:
    """Change a user. Administrators may change all users, others only their own password.

    A new password or deactivation revokes all tokens of the user.

    Args:
        state: The server.
        requester: Token of the user who requests the change.
        user_id: The user to change.
        password: The new password. None: no change.
        is_active: Whether the user may log in. None: no change.
        is_admin: Whether the user is an administrator. None: no change.
        is_prehashed: Whether the password is a result of `prehash`.

    Raises:
        ForbiddenError: If the requester lacks permission.
        InvalidArgumentError: If the password is invalid.
        NotFoundError: If the user does not exist.
    """
    _check_rights(requester, user_id, is_active=is_active, is_admin=is_admin)
    if password is not None:
        check_new_password(password, is_prehashed=is_prehashed)

    def run() -> UserRecord:
        fields = {"is_active": is_active, "is_admin": is_admin}
        changes: dict[str, Any] = {
            name: value for name, value in fields.items() if value is not None
        }
        if password is not None:
            changes["password_hash"] = hash_password(password, is_prehashed=is_prehashed)
        if not changes:
            return state.database.get_user(user_id)
        return state.database.update_user(user_id, **changes)

    return await anyio.to_thread.run_sync(run, limiter=state.hashing)


def _check_rights(
    requester: TokenRecord, user_id: int, *, is_active: bool | None, is_admin: bool | None
) -> None:
    is_own = user_id == requester.user_id
    if not requester.is_admin and not (is_own and is_active is None and is_admin is None):
        raise ForbiddenError("only an administrator may change other users or administrator rights")
    if is_own and (is_active is False or is_admin is False):
        raise ForbiddenError(
            "administrators cannot deactivate or demote themselves, because no administrator might "
            "remain.\nAsk another administrator, or run on the server's machine: "
            "detcore user deactivate NAME"
        )


class LoggedIn(BaseModel):
    """Token and its expiry time (seconds since 1970)."""

    token: str = Field(repr=False)
    expires_at: float
    name: str = ""
    is_admin: bool = False


async def log_in(
    state: ServerState, name: str, password: str, *, is_prehashed: bool, address: str
) -> LoggedIn:
    """Create a token for a user name and password.

    Args:
        state: The server.
        name: Name of the user.
        password: The user's password.
        is_prehashed: Whether the password is a result of `prehash`.
        address: Address of the client. See `address_of`.

    Raises:
        ForbiddenError: If the name or the password is wrong, without saying which.
        TooManyLoginAttemptsError: If too many wrong passwords were tried.
    """
    user = await check_password(state, name, password, is_prehashed=is_prehashed, address=address)
    return await anyio.to_thread.run_sync(_issue_token, state, user)


async def check_password(
    state: ServerState, name: str, password: str, *, is_prehashed: bool, address: str
) -> UserRecord:
    """Return the user with this name and password.

    Raises:
        ForbiddenError: If the name or the password is wrong, without saying which.
        TooManyLoginAttemptsError: If too many wrong passwords were tried.
    """
    wait_s = state.throttle.begin(name, address)
    if wait_s:
        raise TooManyLoginAttemptsError(
            f"too many login attempts; try again in {wait_s} seconds.", retry_after_s=wait_s
        )
    user = await anyio.to_thread.run_sync(
        _find_user, state, name, password, is_prehashed, limiter=state.hashing
    )
    if user is None:
        raise ForbiddenError("invalid credentials")
    state.throttle.succeed(name, address)
    return user


def _find_user(
    state: ServerState, name: str, password: str, is_prehashed: bool
) -> UserRecord | None:
    try:
        user = state.database.get_user(name)
    except NotFoundError:
        user = None
    stored_hash = user.password_hash if user is not None and user.is_active else None
    # Hash even for unknown users, so that timing does not reveal which users exist.
    is_right = is_password(password, stored_hash, is_prehashed=is_prehashed)
    return user if is_right else None


def _issue_token(state: ServerState, user: UserRecord) -> LoggedIn:
    token = new_token()
    expires_at = time.time() + state.settings.token_lifetime_s
    is_noted = state.database.add_token(
        token_digest(token),
        user_id=user.id,
        expires_at=expires_at,
        password_hash=user.password_hash,
    )
    if not is_noted:
        raise ForbiddenError("invalid credentials")  # the password was changed a moment ago
    return LoggedIn(token=token, expires_at=expires_at, name=user.name, is_admin=user.is_admin)


def log_out(state: ServerState, token: str) -> None:
    """Revoke a token."""
    state.database.remove_token(token_digest(token))
