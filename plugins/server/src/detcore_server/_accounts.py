"""Rules for the names, passwords and rights of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.errors import ForbiddenError, InvalidArgumentError, describe

if TYPE_CHECKING:
    from detcore.database import TokenRecord

__all__ = ["MAX_NAME", "MAX_PASSWORD", "check_change", "check_name", "check_new_password"]

MAX_NAME = 64
MAX_PASSWORD = 1024
_MIN_PASSWORD = 8


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


def check_new_password(password: str) -> str:
    """Return a new password.

    Raises:
        InvalidArgumentError: If its length is not allowed; the message does not show it.
    """
    if _MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        return password
    raise InvalidArgumentError(
        f"a password has {_MIN_PASSWORD} to {MAX_PASSWORD} characters; this one has "
        f"{len(password)}."
    )


def check_change(
    admin: TokenRecord, user_id: int, *, is_active: bool | None, is_admin: bool | None
) -> None:
    """Check that an administrator does not deactivate or demote himself; None: no change.

    Raises:
        ForbiddenError: If the user is the administrator, and would no longer be one.
    """
    if user_id == admin.user_id and (is_active is False or is_admin is False):
        raise ForbiddenError(
            "an administrator cannot do this to himself: nobody might be left who manages users.\n"
            "Another one can, or: detcore user deactivate NAME, where the records are."
        )
