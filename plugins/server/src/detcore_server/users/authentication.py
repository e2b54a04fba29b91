"""Authentication: the guards that every route depends on, except those for logging in.

====================  ==============================================================
guard                 lets through
====================  ==============================================================
`Requester`           any user who has logged in (a bearer token)
`Admin`               a user who has logged in and may manage users
`PageUser`            a browser that has logged in (a cookie); others see the log-in form
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

# Key of the request's scope where the guards store the user's name, for the log.
USER = "detcore.user"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="What /api/detcore/v1/login answers."
)

# Ids of records: no database has ids outside this range, so none is queried for them.
Id = Annotated[int, Path(ge=1, le=2**31 - 1)]


class LogInFirst(Exception):
    """A browser that must see the log-in form.

    Attributes:
        path: The path that it requested; "" if the request must not be repeated.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


# The dependencies are coroutines because others would each wait for a thread.
async def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.detcore
    return state


State = Annotated[ServerState, Depends(_state)]


async def _records(state: State) -> ServerDatabase:
    return state.database


Records = Annotated[ServerDatabase, Depends(_records)]


async def find_token(state: ServerState, token: str) -> TokenRecord | None:
    """Return the record of a token; None if the token is not valid."""
    key = token_digest(token)
    if state.visit is not None:
        return state.visit.find_token(key)
    try:
        return await anyio.to_thread.run_sync(state.database.find_token, key)
    except DatabaseError as error:
        # The client has to retry: this does not mean that the token is invalid.
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error


async def _token(
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> str:
    return given.credentials if given is not None else ""


# The token that came with a request; "" without one.
Token = Annotated[str, Depends(_token)]


async def require_user(request: Request, state: State, token: Token) -> TokenRecord:
    """Return the valid token that a request came with."""
    if not token:
        raise UnauthenticatedError(
            "this needs a token, and came without one.\nLog in: detcore user login URL"
        )
    found = await find_token(state, token)
    if found is None:
        raise UnauthenticatedError(
            "the token is not, or no longer, good: it expired, or its user logged out.\n"
            "Log in again: detcore user login URL"
        )
    request.scope[USER] = found.user_name
    return found


Requester = Annotated[TokenRecord, Depends(require_user)]


async def _admin(requester: Requester) -> TokenRecord:
    if not requester.is_admin:
        raise ForbiddenError(
            f"the user {requester.user_name!r} may not do this: only an administrator may."
        )
    return requester


Admin = Annotated[TokenRecord, Depends(_admin)]


async def _same_origin(request: Request, state: State) -> None:
    """Refuse requests that the page of another site makes a browser send."""
    if request.method in _SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if origin is not None:
        is_own = origin.lower() in (_own_origin(request), _origin(state.settings.url))
    else:
        is_own = site == "same-origin"
    if not is_own or site not in (None, "same-origin"):
        raise ForbiddenError("this was asked by a page of another site: it is refused.")


SameOrigin = Depends(_same_origin)


def _own_origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}".lower()


def _origin(url: str) -> str:
    """Return the origin of a URL as browsers write it: without the port of its scheme."""
    origin = "/".join(url.split("/")[:3]).lower()
    default = ":443" if origin.startswith("https:") else ":80"
    return origin.removesuffix(default)


async def require_page_user(
    request: Request, state: State, _: Annotated[None, SameOrigin]
) -> TokenRecord:
    token = cookie_of(request, state)
    found = await find_token(state, token) if token else None
    if found is None:
        is_safe = request.method in _SAFE_METHODS
        query = f"?{request.url.query}" if request.url.query else ""
        raise LogInFirst(f"{request.url.path}{query}" if is_safe else "")
    request.scope[USER] = found.user_name
    request.state.user = found
    return found


PageUser = Annotated[TokenRecord, Depends(require_page_user)]


def _cookie_name(state: ServerState) -> str:
    # Browsers keep cookies by host, not by port: two servers of one machine need two names.
    name = f"detcore-{state.settings.port}"
    return f"__Host-{name}" if _is_secure(state) else name


def _is_secure(state: ServerState) -> bool:
    return state.settings.url.startswith("https:")


def cookie_of(request: Request, state: ServerState) -> str:
    """Return the token that a browser's cookie holds; "" without one."""
    return request.cookies.get(_cookie_name(state), "")


def set_cookie(response: Response, state: ServerState, token: str, max_age_s: int | None) -> None:
    """Let a browser keep a token, out of reach of scripts and of other sites.

    Args:
        response: The answer to the browser.
        state: The server.
        token: The token; "": the browser forgets its token.
        max_age_s: How long the browser keeps it; None: until the browser ends.
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
    """Return the address that a request came from; "" if it is unknown."""
    return request.client.host if request.client is not None else ""
