"""Users: the rules for their names, passwords and rights, and the changes that keep to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from detcore.errors import ForbiddenError, InvalidArgumentError, describe
from detcore_server._passwords import hash_password

if TYPE_CHECKING:
    from detcore_server._database import TokenRecord, UserRecord
    from detcore_server._state import ServerState


MAX_NAME = 64
MAX_PASSWORD = 1024
_MIN_PASSWORD = 8
# SHA-512 in hexadecimal digits; see `detcore_server._passwords.prehash`.
_PREHASHED = "[0-9a-f]{128}"


def check_name(name: str) -> str:
    """Return the name of a new user.

    Raises:
        InvalidArgumentError: If it cannot be one.
    """
    if name and len(name) <= MAX_NAME and name.isprintable() and name == name.strip():
        return name
    raise InvalidArgumentError(
        f"{describe(name)} cannot be the name of a user: it has 1 to {MAX_NAME} characters that "
        "can be printed, and no space at its ends."
    )


def check_new_password(password: str, *, is_prehashed: bool = False) -> str:
    """Return a new password.

    Args:
        password: The password.
        is_prehashed: Whether it is a result of `detcore_server._passwords.prehash`.

    Raises:
        InvalidArgumentError: If its length is not allowed; the message does not show it.
    """
    if is_prehashed:
        if re.fullmatch(_PREHASHED, password):
            return password
        raise InvalidArgumentError("a hashed password has 128 hexadecimal digits")
    if _MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        return password
    raise InvalidArgumentError(
        f"a password has {_MIN_PASSWORD} to {MAX_PASSWORD} characters; this one has "
        f"{len(password)}."
    )


async def add_user(
    state: ServerState,
    name: str,
    password: str,
    *,
    is_admin: bool = False,
    is_prehashed: bool = False,
) -> UserRecord:
    """Add a user, who is active.

    Args:
        state: The server.
        name: Name of the user.
        password: The user's password.
        is_admin: Whether the user is an administrator.
        is_prehashed: Whether the password is hashed as Determined's client does it.

    Raises:
        InvalidArgumentError: If the name or the password cannot be one.
        DatabaseError: If there is such a user.
    """
    check_name(name)
    check_new_password(password, is_prehashed=is_prehashed)

    def run() -> UserRecord:
        kept = hash_password(password, is_prehashed=is_prehashed)
        return state.database.create_user(name, password_hash=kept, is_admin=is_admin)

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
    """Change a user: an administrator changes anything, others their own password.

    A new password, and a user's deactivation, revoke all tokens of the user.

    Args:
        state: The server.
        requester: Token of the user who requests the change.
        user_id: The user to change.
        password: The new password; None: it stays.
        is_active: Whether the user may log in; None: no change.
        is_admin: Whether the user is an administrator; None: no change.
        is_prehashed: Whether the password is hashed as Determined's client does it.

    Raises:
        ForbiddenError: If the requester may not do this.
        InvalidArgumentError: If the password cannot be one.
        NotFoundError: If there is no such user.
    """
    _check_rights(requester, user_id, is_active=is_active, is_admin=is_admin)
    if password is not None:
        check_new_password(password, is_prehashed=is_prehashed)

    def run() -> UserRecord:
        given = {"is_active": is_active, "is_admin": is_admin}
        changed: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if password is not None:
            changed["password_hash"] = hash_password(password, is_prehashed=is_prehashed)
        if not changed:
            return state.database.get_user(user_id)
        return state.database.update_user(user_id, **changed)

    return await anyio.to_thread.run_sync(run, limiter=state.hashing)


def _check_rights(
    requester: TokenRecord, user_id: int, *, is_active: bool | None, is_admin: bool | None
) -> None:
    is_own = user_id == requester.user_id
    if not requester.is_admin and not (is_own and is_active is None and is_admin is None):
        raise ForbiddenError("only an administrator may change other users, or who is one")
    if is_own and (is_active is False or is_admin is False):
        raise ForbiddenError(
            "an administrator cannot do this to himself: nobody might be left who manages users.\n"
            "Another one can, or: detcore user deactivate NAME, where the records are."
        )
