"""Run the application in a process."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from detcore_server.app import make_app
from detcore_server.http.connection_limits import make_protocol
from detcore_server.http.server_log import configure_logging

if TYPE_CHECKING:
    import threading

    from detcore_server.server_settings import ServerSettings
    from detcore_server.users.one_time_link import Visit


# For requests in progress when the server receives a signal to end.
_END_S = 10
# Longer than the pools of clients keep a connection that they do not use.
_KEEP_ALIVE_S = 75
# Besides connections: of the database, of checkpoints, of experiments.
_OTHER_FILES = 1000


def serve(
    settings: ServerSettings,
    listener: socket.socket,
    announce: Callable[[], None] | None = None,
    *,
    visit: Visit | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP arrives; requests in progress are still answered.

    SIGHUP stays ignored if it was (nohup).

    Args:
        settings: Settings of the server.
        listener: Socket to serve on; it listens already.
        announce: Called when the server can answer, and handles signals.
        visit: The link of the one person who is served; None: users log in.

    Raises:
        KeyboardInterrupt: After SIGINT.
        SystemExit: With code 0, after SIGTERM or SIGHUP.
        DatabaseError: If the database cannot be opened.
    """
    configure_logging(settings.log_level)
    _allow_files(settings.max_connections + _OTHER_FILES)
    app = make_app(settings, visit=visit)
    config = uvicorn.Config(
        app,
        http=make_protocol(settings.max_connections),
        ws="none",
        log_config=None,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        access_log=False,
        server_header=False,
        proxy_headers=settings.proxy is not None,
        forwarded_allow_ips=settings.proxy,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_END_S,
    )
    # uvicorn sends the signal again after its shutdown: to end by SIGTERM is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    if announce is not None:
        announce()
    _Server(config, app.state.detcore.ending).run(sockets=[listener])


def _allow_files(count: int) -> None:
    """Let this process open `count` files and connections, or as many as the system allows."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)
