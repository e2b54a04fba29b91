"""Users: lists, new users, and changes to users."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from detcore_determined._routes._answers import (
    Document,
    Limit,
    Nested,
    Offset,
    Text,
    answer,
    moment,
    new_router,
    page,
    part,
    refuse,
)
from detcore_server import Requester
from detcore_server.routes import Admin, Id, State, UserRecord, add_user, change_user


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
    """Changes to a user; a field that is missing or null stays as it is."""

    active: bool | None = None
    admin: bool | None = None
    password: str | None = Field(default=None, max_length=1024, repr=False)
    isHashed: bool | None = None
    username: Text | None = None
    displayName: Text | None = None
    remote: bool | None = None
    agentUserGroup: Nested | None = None


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/api/v1/users")
    def list_users(
        state: State,
        _: Requester,
        active: bool | None = None,
        admin: bool | None = None,
        name: Text = "",
        limit: Limit = 0,
        offset: Offset = 0,
    ) -> Response:
        """List users by id."""
        found = [
            user
            for user in state.database.list_users()
            if active in (None, user.is_active)
            and admin in (None, user.is_admin)
            and name.casefold() in user.name.casefold()
        ]
        start, end = part(len(found), limit, offset)
        where = page(len(found), start, end, limit=limit, offset=offset)
        users = [user_document(user) for user in found[start:end]]
        return answer({"users": users, "pagination": where})

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
        """Add a user; only an administrator may."""
        if body.user.remote:
            raise refuse(400, "detcore has no users of another service: leave remote out")
        made = await add_user(
            state,
            body.user.username,
            body.password or "",
            is_admin=body.user.admin,
            is_prehashed=bool(body.isHashed),
        )
        if not body.user.active:
            made = await change_user(state, admin, made.id, is_active=False)
        return answer({"user": user_document(made)})

    @router.patch("/api/v1/users/{user_id}")
    async def patch_user(
        state: State, requester: Requester, user_id: Id, body: PatchUser
    ) -> Response:
        """Change a user: an administrator anything, others their own password."""
        _check_change(body)
        changed = await change_user(
            state,
            requester,
            user_id,
            password=body.password,
            is_active=body.active,
            is_admin=body.admin,
            is_prehashed=bool(body.isHashed),
        )
        return answer({"user": user_document(changed)})

    return router


def user_document(user: UserRecord) -> Document:
    """Return a user as clients see it."""
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
    for what, given in (
        ("other names", body.username),
        ("display names", body.displayName),
        ("other services", body.remote),
        ("users of agents", body.agentUserGroup),
    ):
        if given:
            raise refuse(
                400, f"detcore has no {what} for users that there are; nothing was changed"
            )
