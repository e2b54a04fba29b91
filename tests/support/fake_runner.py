"""Fake runner for tests that start a worker directly."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

from detcore.records import Database, answer_question


class FakeRunner:
    """Records messages from workers' channels and answers requests.

    Args:
        database_url: The records.
        home: Directory of the workers' logs.

    Attributes:
        messages: Messages from workers, without requests.
    """

    def __init__(self, database_url: str, home: Path) -> None:
        self._database_url = database_url
        self._home = home
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.messages: list[dict[str, Any]] = []

    def workers_end(self, trial_id: int) -> int:
        """Create a channel for a worker of a trial, and return its descriptor."""
        runner_socket, worker_socket = socket.socketpair()
        self._sockets += [runner_socket, worker_socket]
        thread = threading.Thread(target=self._listen, args=(runner_socket, trial_id))
        thread.start()
        self._threads.append(thread)
        return worker_socket.fileno()

    def _listen(self, ours: socket.socket, trial_id: int) -> None:
        for line in ours.makefile("rb"):
            message = json.loads(line)
            if message["type"] != "question":
                self.messages.append(message)
                continue
            with Database.open(self._database_url) as database:
                answer = answer_question(
                    database, self._home, trial_id, message["question"], message["fields"]
                )
            reply = {"type": "answer", "number": message["number"], "answer": answer}
            with contextlib.suppress(BrokenPipeError):  # the worker may have been killed
                ours.sendall(json.dumps(reply).encode() + b"\n")

    def close(self) -> None:
        """Close all channels."""
        for connection in self._sockets:
            connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()
