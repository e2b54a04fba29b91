"""Routes for login, logout and user management."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from detcore import __version__
from detcore.errors import InvalidArgumentError
from detcore_server.server_database import UserRecord
from detcore_server.users.accounts import (
    MAX_NAME,
    MAX_PASSWORD,
    LoggedIn,
    add_user,
    change_user,
    check_new_password,
    check_password,
    log_in,
    log_out,
)
from detcore_server.users.authentication import Admin, Id, Requester, State, Token, address_of


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Login(_Body):
    """The name and password of a user."""

    username: str = Field(max_length=MAX_NAME)
    password: str = Field(default="", max_length=MAX_PASSWORD, repr=False)


class NewUser(_Body):
    """A new user."""

    username: str
    password: str = Field(repr=False)
    is_admin: bool = False


class UserChange(_Body):
    """An administrator's changes to a user. A missing field stays unchanged."""

    password: str | None = Field(default=None, repr=False)
    is_active: bool | None = None
    is_admin: bool | None = None


class PasswordChange(_Body):
    """The old password and the new one."""

    old: str = Field(max_length=MAX_PASSWORD, repr=False)
    new: str = Field(repr=False)


class Me(BaseModel):
    """Current user, token expiry (seconds since 1970) and server version."""

    name: str
    is_admin: bool
    expires_at: float
    version: str


class User(BaseModel, from_attributes=True):
    """A user. Only active users can log in. `created_at` is in seconds since 1970."""

    id: int
    name: str
    is_admin: bool
    is_active: bool
    created_at: float


router = APIRouter(prefix="/api/detcore/v1", tags=["users"])


@router.post("/login")
async def post_login(request: Request, state: State, login: Login) -> LoggedIn:
    """Create a token for a name and password."""
    return await log_in(
        state,
        login.username,
        login.password,
        is_prehashed=False,
        address=address_of(request),
    )


@router.post("/logout", status_code=204)
def post_logout(state: State, _: Requester, token: Token) -> None:
    """Revoke the token."""
    log_out(state, token)


@router.get("/me")
async def get_me(requester: Requester) -> Me:
    """Return the current user."""
    return Me(
        name=requester.user_name,
        is_admin=requester.is_admin,
        expires_at=requester.expires_at,
        version=__version__,
    )


@router.post("/me/password")
async def post_password(
    request: Request, state: State, requester: Requester, change: PasswordChange
) -> LoggedIn:
    """Change the current user's password, revoke all tokens and return a new token."""
    address = address_of(request)
    check_new_password(change.new)
    await check_password(
        state, requester.user_name, change.old, is_prehashed=False, address=address
    )
    await change_user(state, requester, requester.user_id, password=change.new)
    return await log_in(state, requester.user_name, change.new, is_prehashed=False, address=address)


@router.get("/users", response_model=list[User])
def get_users(state: State, _: Admin) -> list[UserRecord]:
    """Return all users. Only administrators may do this."""
    return state.database.list_users()


@router.post("/users", status_code=201, response_model=User)
async def post_user(state: State, _: Admin, new: NewUser) -> UserRecord:
    """Create a user. Only administrators may do this."""
    return await add_user(state, new.username, new.password, is_admin=new.is_admin)


@router.patch("/users/{user_id}", response_model=User)
async def patch_user(state: State, admin: Admin, user_id: Id, change: UserChange) -> UserRecord:
    """Change a user. A new password revokes all tokens. Only administrators may do this."""
    if not change.model_fields_set:
        raise InvalidArgumentError("nothing to change; set password, is_active or is_admin")
    return await change_user(state, admin, user_id, **change.model_dump())
