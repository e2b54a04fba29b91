"""Run the application in this process."""

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


# Grace period for requests in progress after a signal to end.
_END_S = 10
# Longer than client pools keep idle connections.
_KEEP_ALIVE_S = 75
# Files of the database, checkpoints and experiments, in addition to connections.
_OTHER_FILES = 1000


def serve(
    settings: ServerSettings,
    listener: socket.socket,
    announce: Callable[[], None] | None = None,
    *,
    visit: Visit | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, and finish the requests in progress.

    SIGHUP stays ignored under nohup.

    Args:
        settings: Settings of the server.
        listener: Listening socket.
        announce: Called when the server is ready and handles signals.
        visit: One-time link of ``detcore ui``. None: users log in.

    Raises:
        KeyboardInterrupt: After SIGINT.
        SystemExit: With code 0, after SIGTERM or SIGHUP.
        DatabaseError: If the database cannot be opened.
    """
    configure_logging(settings.log_level)
    _raise_file_limit(settings.max_connections + _OTHER_FILES)
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
    server = _Server(config, app.state.detcore.ending, announce)
    # These only set flags. An exception could get lost in a callback of an import.
    signal.signal(signal.SIGTERM, server.handle_exit)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    server.run(sockets=[listener])
    if app.state.detcore.ending.is_set():
        sys.exit(0)


def _raise_file_limit(count: int) -> None:
    """Raise the limit of open files to `count`, or to the system's maximum."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        ending: threading.Event,
        announce: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._ending = ending
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._announce is not None and not self.should_exit:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)
