"""The real application on a real socket in a thread of the test, which is fast.

Use `running_server.py` to test signals, kills and options of a server process.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from detcore.environment import Environment
from detcore.plugins import PluginManager
from detcore_server import ServerSettings, make_app
from detcore_server.server_database import ServerDatabase

__all__ = ["make_token", "served", "served_app"]

_USER = "grace"


def make_token(database_url: str, *, user: str = _USER, is_admin: bool = True) -> str:
    """Create a user without a password, and return a token for it."""
    token = f"token-of-{user}"
    with ServerDatabase.open(database_url) as database:
        record = database.create_user(user, password_hash=None, is_admin=is_admin)
        digest = hashlib.sha256(token.encode()).hexdigest()
        database.add_token(digest, user_id=record.id, expires_at=time.time() + 3600)
    return token


@contextlib.contextmanager
def served(environment: Environment) -> Iterator[str]:
    """Serve the records of an environment during the block, and yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ServerSettings(
            environment=environment,
            plugins=PluginManager(environment),
            port=listener.getsockname()[1],
        )
        with _run(make_app(settings), listener) as url:
            yield url


@contextlib.contextmanager
def served_app(app: FastAPI) -> Iterator[str]:
    """Serve an application during the block, and yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener, _run(app, listener) as url:
        yield url


@contextlib.contextmanager
def _run(app: FastAPI, listener: socket.socket) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive(), "the server does not end"
