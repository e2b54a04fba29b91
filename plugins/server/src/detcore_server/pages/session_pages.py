"""Login and logout pages, and the page behind the link of ``detcore ui``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from detcore.errors import ForbiddenError, TooManyLoginAttemptsError
from detcore_server.pages.render import HOME, error_page, render
from detcore_server.users.accounts import log_in, log_out
from detcore_server.users.authentication import (
    PageUser,
    SameOrigin,
    State,
    address_of,
    cookie_of,
    set_cookie,
)

_MAX_PATH = 2000
_USED = (
    "This link was already used or belongs to an earlier start of detcore ui. Each link works "
    "once.\nPress Ctrl-C in the terminal and run detcore ui again for a new link."
)
router = APIRouter()
personal_router = APIRouter()


@router.get("/ui/login")
def show_login(request: Request, next_page: Annotated[str, Query(alias="next")] = "") -> Response:
    return render(request, "login.html", next_page=_check_path(next_page), name="", error=None)


@router.post("/ui/login", dependencies=[SameOrigin])
async def do_login(
    request: Request,
    state: State,
    name: Annotated[str, Form()] = "",
    password: Annotated[str, Form()] = "",
    next_page: Annotated[str, Form(alias="next")] = "",
) -> Response:
    next_page = _check_path(next_page)
    try:
        logged_in = await log_in(
            state, name, password, is_prehashed=False, address=address_of(request)
        )
    except ForbiddenError as error:
        # TooManyLoginAttemptsError is a subclass.
        wait_s = error.retry_after_s if isinstance(error, TooManyLoginAttemptsError) else 0
        response = render(
            request, "login.html", status=429 if wait_s else 403,
            next_page=next_page, name=name,
            error=str(error) if wait_s else "The name or the password is wrong.",
        )  # fmt: skip
        if wait_s:
            response.headers["Retry-After"] = str(wait_s)
        return response
    response = RedirectResponse(next_page, 303)
    set_cookie(response, state, logged_in.token, int(state.settings.token_lifetime_s))
    return response


@router.post("/ui/logout")
def do_logout(request: Request, state: State, _: PageUser) -> Response:
    log_out(state, cookie_of(request, state))
    response = RedirectResponse("/ui/login", 303)
    set_cookie(response, state, "", 0)
    return response


@personal_router.get("/ui/open")
def open_page(request: Request, state: State, link: str = "") -> Response:
    token = None if state.visit is None else state.visit.open(link)
    if token is None:
        return error_page(request, 403, _USED)
    # A redirect would lose the cookie after a link on a page of another site.
    response = render(request, "open.html")
    set_cookie(response, state, token, None)
    return response


def _check_path(path: str) -> str:
    """Return the path to visit after login, restricted to pages of this server."""
    is_own = path.startswith("/ui/") and path.isprintable() and "\\" not in path
    return path if is_own and len(path) <= _MAX_PATH else HOME
