"""Logging in and out, and information about the server."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from detcore import __version__
from detcore_determined._routes._answers import answer, new_router
from detcore_determined._routes._users import user_document
from detcore_server import Requester
from detcore_server.routes import State, Token, address_of, log_in, log_out

# The release whose API is supported; its client warns of any other.
SPOKEN_VERSION = "0.38.1"
_NAME = "detcore"


class Login(BaseModel):
    """The name and password of a user."""

    username: str = Field(max_length=256)
    password: str = Field(max_length=1024, repr=False)
    isHashed: bool | None = None


def make_router() -> APIRouter:
    """Return the routes of this part."""
    router = new_router()

    @router.get("/info")
    def get_info() -> Response:
        """Return the release whose API is supported; needs no token."""
        return answer(
            {
                "version": SPOKEN_VERSION,
                "cluster_id": _NAME,
                "cluster_name": _NAME,
                "master_id": _NAME,
            }
        )

    @router.post("/api/v1/auth/login")
    async def post_login(request: Request, state: State, login: Login) -> Response:
        """Return a token for a user's password, which may come hashed."""
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
                "version": SPOKEN_VERSION,
                "detcoreVersion": __version__,
                "clusterId": _NAME,
                "clusterName": _NAME,
                "masterId": _NAME,
                "hasCustomLogo": False,
                "strictJobQueueControl": False,
                "rbacEnabled": False,
                "userManagementEnabled": True,
                "telemetryEnabled": False,
            }
        )

    @router.get("/api/v1/master/config")
    def get_master_config(_: Requester) -> Response:
        """Return the public part of the server's configuration."""
        return answer({"config": {"cluster_name": _NAME, "version": __version__}})

    return router
