"""Users, logging in and out, and information about the server."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request, Response
from pydantic import BaseModel, Field

from detcore import __version__
from detcore_determined.routes.response_models import (
    Document,
    Nested,
    Part,
    Text,
    answer,
    answer_page,
    moment,
    new_router,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import (
    Admin,
    Id,
    State,
    Token,
    UserRecord,
    add_user,
    address_of,
    change_user,
    log_in,
    log_out,
)

# The release whose API is supported. Its client warns of other releases.
_VERSION = "0.38.1"
_NAME = "detcore"


class Login(BaseModel):
    """The name and password of a user."""

    username: str = Field(max_length=256)
    password: str = Field(max_length=1024, repr=False)
    isHashed: bool | None = None


class NewUser(BaseModel):
    """A new user."""

    username: Text = Field(min_length=1, max_length=256)
    admin: bool = False
    active: bool = True
    remote: bool | None = None


class PostUser(BaseModel):
    """A new user, and its password."""

    user: NewUser
    password: str | None = Field(default=None, max_length=1024, repr=False)
    isHashed: bool | None = None


class PatchUser(BaseModel):
    """Changes to a user. Missing or null fields do not change."""

    active: bool | None = None
    admin: bool | None = None
    password: str | None = Field(default=None, max_length=1024, repr=False)
    isHashed: bool | None = None
    username: Text | None = None
    displayName: Text | None = None
    remote: bool | None = None
    agentUserGroup: Nested | None = None


router = new_router()


@router.get("/api/v1/users")
def list_users(
    state: State,
    _: Requester,
    part: Part,
    active: bool | None = None,
    admin: bool | None = None,
    name: Text = "",
) -> Response:
    """List users by id."""
    users = [
        user
        for user in state.database.list_users()
        if active in (None, user.is_active)
        and admin in (None, user.is_admin)
        and name.casefold() in user.name.casefold()
    ]
    return answer_page("users", users, _describe_users, part)


@router.get("/api/v1/users/{user_id}")
def get_user(state: State, _: Requester, user_id: Id) -> Response:
    """Return a user."""
    return answer({"user": user_document(state.database.get_user(user_id))})


@router.get("/api/v1/users/{name}/by-username")
def get_user_by_name(state: State, _: Requester, name: Text) -> Response:
    """Return a user by its name."""
    return answer({"user": user_document(state.database.get_user(name))})


@router.post("/api/v1/users")
async def post_user(state: State, admin: Admin, body: PostUser) -> Response:
    """Add a user. This requires an administrator."""
    if body.user.remote:
        raise refuse(400, "detcore has no users of other services: remove remote")
    user = await add_user(
        state,
        body.user.username,
        body.password or "",
        is_admin=body.user.admin,
        is_prehashed=bool(body.isHashed),
    )
    if not body.user.active:
        user = await change_user(state, admin, user.id, is_active=False)
    return answer({"user": user_document(user)})


@router.patch("/api/v1/users/{user_id}")
async def patch_user(state: State, requester: Requester, user_id: Id, body: PatchUser) -> Response:
    """Change a user. Administrators can change all fields, other users their own password."""
    _check_change(body)
    user = await change_user(
        state,
        requester,
        user_id,
        password=body.password,
        is_active=body.active,
        is_admin=body.admin,
        is_prehashed=bool(body.isHashed),
    )
    return answer({"user": user_document(user)})


@router.get("/info")
def get_info() -> Response:
    """Return the release whose API is supported. This needs no token."""
    return answer(
        {
            "version": _VERSION,
            "cluster_id": _NAME,
            "cluster_name": _NAME,
            "master_id": _NAME,
        }
    )


@router.post("/api/v1/auth/login")
async def post_login(request: Request, state: State, login: Login) -> Response:
    """Return a token for a user's password, which may be hashed."""
    logged_in = await log_in(
        state,
        login.username,
        login.password,
        is_prehashed=bool(login.isHashed),
        address=address_of(request),
    )
    user = {
        "username": logged_in.name,
        "admin": logged_in.is_admin,
        "active": True,
    }
    return answer({"token": logged_in.token, "user": user})


@router.post("/api/v1/auth/logout")
def post_logout(state: State, _: Requester, token: Token) -> Response:
    """Revoke the token."""
    log_out(state, token)
    return answer({})


@router.get("/api/v1/me")
def get_me(state: State, requester: Requester) -> Response:
    """Return the user that the token belongs to."""
    return answer({"user": user_document(state.database.get_user(requester.user_id))})


@router.get("/api/v1/master")
def get_master(_: Requester) -> Response:
    """Return the versions, names and features of the server."""
    return answer(
        {
            "version": _VERSION,
            "detcoreVersion": __version__,
            "clusterId": _NAME,
            "clusterName": _NAME,
            "masterId": _NAME,
            "hasCustomLogo": False,
            "strictJobQueueControl": False,
            "rbacEnabled": False,
        }
    )


@router.get("/api/v1/master/config")
def get_master_config(_: Requester) -> Response:
    """Return the public part of the server's configuration."""
    return answer({"config": {"cluster_name": _NAME, "version": __version__}})


def _describe_users(users: Sequence[UserRecord]) -> list[Document]:
    return [user_document(user) for user in users]


def user_document(user: UserRecord) -> Document:
    """Return a user in the form of the earlier system."""
    return {
        "id": user.id,
        "username": user.name,
        "displayName": "",
        "admin": user.is_admin,
        "active": user.is_active,
        "remote": False,
        "modifiedAt": moment(user.created_at),
    }


def _check_change(body: PatchUser) -> None:
    """Refuse fields of users that detcore does not have."""
    for field, value in (
        ("other names", body.username),
        ("display names", body.displayName),
        ("other services", body.remote),
        ("users of agents", body.agentUserGroup),
    ):
        if value:
            raise refuse(
                400, f"detcore has no {field} for users that there are; nothing was changed"
            )
