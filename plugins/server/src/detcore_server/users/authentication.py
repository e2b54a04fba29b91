"""Authentication guards of all routes, except the login routes.

====================  ==============================================================
guard                 lets through
====================  ==============================================================
`Requester`           any user with a bearer token
`Admin`               an administrator with a bearer token
`PageUser`            a browser with a login cookie; others see the login form
====================  ==============================================================
"""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import Depends, HTTPException, Path, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from detcore.errors import DatabaseError, ForbiddenError, UnauthenticatedError
from detcore_server.server_database import ServerDatabase, TokenRecord, token_digest
from detcore_server.server_state import ServerState

# Key of the request's scope in which the guards store the user's name for the log.
USER = "detcore.user"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="Token from /api/detcore/v1/login."
)

# Ids outside this range do not exist, so the database is not queried for them.
Id = Annotated[int, Path(ge=1, le=2**31 - 1)]


class LogInFirst(Exception):
    """Raised when a browser must log in first.

    Attributes:
        path: Requested path, or "" if the request must not be repeated.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


# The dependencies are coroutines, because each function would wait for a thread.
async def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.detcore
    return state


State = Annotated[ServerState, Depends(_state)]


async def _records(state: State) -> ServerDatabase:
    return state.database


Records = Annotated[ServerDatabase, Depends(_records)]


async def find_token(state: ServerState, token: str) -> TokenRecord | None:
    """Return the record of a token, or None if it is invalid."""
    key = token_digest(token)
    if state.visit is not None:
        return state.visit.find_token(key)
    try:
        return await anyio.to_thread.run_sync(state.database.find_token, key)
    except DatabaseError as error:
        # The client must retry, because the token may be valid.
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error


async def _token(
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    return given.credentials if given is not None else ""


# Token of a request, or "".
Token = Annotated[str, Depends(_token)]


async def require_user(request: Request, state: State, token: Token) -> TokenRecord:
    """Return the valid token of a request."""
    if not token:
        raise UnauthenticatedError("the request has no token.\nLog in with: detcore user login URL")
    record = await find_token(state, token)
    if record is None:
        raise UnauthenticatedError(
            "the token is invalid. It has expired, or its user has logged out.\n"
            "Log in again with: detcore user login URL"
        )
    request.scope[USER] = record.user_name
    return record


Requester = Annotated[TokenRecord, Depends(require_user)]


async def _admin(requester: Requester) -> TokenRecord:
    if not requester.is_admin:
        raise ForbiddenError(
            f"user {requester.user_name!r} may not do this. Administrator rights are required."
        )
    return requester


Admin = Annotated[TokenRecord, Depends(_admin)]


async def _same_origin(request: Request, state: State) -> None:
    """Reject requests that pages of other sites make a browser send."""
    if request.method in _SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if origin is not None:
        is_own = origin.lower() in (_request_origin(request), _parse_origin(state.settings.url))
    else:
        is_own = site == "same-origin"
    if not is_own or site not in (None, "same-origin"):
        raise ForbiddenError("requests from pages of other sites are rejected.")


SameOrigin = Depends(_same_origin)


def _request_origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}".lower()


def _parse_origin(url: str) -> str:
    """Return the origin of a URL as browsers send it, without the scheme's default port."""
    origin = "/".join(url.split("/")[:3]).lower()
    default = ":443" if origin.startswith("https:") else ":80"
    return origin.removesuffix(default)


async def require_page_user(
    request: Request, state: State, _: Annotated[None, SameOrigin]
) -> TokenRecord:
    token = cookie_of(request, state)
    record = await find_token(state, token) if token else None
    if record is None:
        is_safe = request.method in _SAFE_METHODS
        query = f"?{request.url.query}" if request.url.query else ""
        raise LogInFirst(f"{request.url.path}{query}" if is_safe else "")
    request.scope[USER] = record.user_name
    request.state.user = record
    return record


PageUser = Annotated[TokenRecord, Depends(require_page_user)]


def _cookie_name(state: ServerState) -> str:
    # Cookies are stored by host and not by port, so two servers on one machine need two names.
    name = f"detcore-{state.settings.port}"
    return f"__Host-{name}" if _is_secure(state) else name


def _is_secure(state: ServerState) -> bool:
    return state.settings.url.startswith("https:")


def cookie_of(request: Request, state: ServerState) -> str:
    """Return the token in a browser's cookie, or ""."""
    return request.cookies.get(_cookie_name(state), "")


def set_cookie(response: Response, state: ServerState, token: str, max_age_s: int | None) -> None:
    """Set the login cookie, inaccessible to scripts and other sites.

    Args:
        response: Response to the browser.
        state: The server.
        token: The token, or "" to delete the cookie.
        max_age_s: Lifetime of the cookie in seconds. None: until the browser exits.
    """
    response.set_cookie(
        _cookie_name(state),
        token,
        max_age_s,
        secure=_is_secure(state),
        httponly=True,
        samesite="strict",
    )


def address_of(request: Request) -> str:
    """Return the client's address, or "" if it is unknown."""
    return request.client.host if request.client is not None else ""
