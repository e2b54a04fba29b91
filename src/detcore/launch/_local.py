"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from detcore.environment import child_environment
from detcore.errors import WorkerError
from detcore.types import TrialInfo

__all__ = ["LocalLauncher", "WorkerEvent", "WorkerProcess"]

_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something a worker told of its progress: a ``type`` and its fields."""

    type: str
    fields: Mapping[str, Any]


class LocalLauncher:
    """Starts the worker of a trial as a process of this machine."""

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        keep_open: tuple[int, ...] = (),
        on_output: Callable[[str, str], None],
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
    ) -> WorkerProcess:
        """Start a worker; it ends when this process does, however that happens.

        Args:
            info: Which trial it runs.
            home: The folder of records and default checkpoints.
            keep_open: File descriptors the worker inherits (the experiment's lock).
            on_output: Called from a thread with ``("stdout" | "stderr", line)``.
            disabled_plugins: Plugins that are switched off in the worker too.
            allowed_plugins: The only plugins that are on, or None for all.

        Raises:
            WorkerError: If the process cannot be started.
        """
        info_file = _write_info(info)
        events_read, events_write = os.pipe()
        leash_read, leash_write = os.pipe()
        inherited = (events_write, leash_read, *keep_open)
        variables = {
            "DETCORE_HOME": str(home),
            "DETCORE_TRIAL_INFO": str(info_file),
            "DETCORE_EVENTS_FD": str(events_write),
            "DETCORE_LEASH_FD": str(leash_read),
            "DETCORE_DISABLE_PLUGINS": ",".join(sorted(disabled_plugins)),
            "PYTHONUNBUFFERED": "1",
        }
        if allowed_plugins is not None:
            variables["DETCORE_PLUGINS"] = ",".join(sorted(allowed_plugins))
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "detcore.launch.worker"],
                cwd=info.model_dir,
                env=child_environment(variables),
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C in the terminal reaches the runner only; it passes one signal on.
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (events_read, leash_write):
                os.close(descriptor)
            raise WorkerError(f"the worker in {info.model_dir} did not start: {error}") from error
        finally:
            for descriptor in (events_write, leash_read):
                os.close(descriptor)
        return WorkerProcess(process, events_read, leash_write, on_output)


class WorkerProcess:
    """A running worker: its events, its output, its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        events_fd: int,
        leash_fd: int,
        on_output: Callable[[str, str], None],
    ) -> None:
        self._process = process
        self._events_fd = events_fd
        self._leash_fd = leash_fd
        self._buffer = b""
        self._readers = [
            threading.Thread(target=_pump, args=(stream, name, on_output), daemon=True)
            for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def events(self, interval_s: float = 0.1) -> Iterator[WorkerEvent | None]:
        """Yield what the worker tells until it ends; None when nothing came for `interval_s`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events_fd, selectors.EVENT_READ)
            while True:
                ended = self._process.poll() is not None
                if selector.select(0 if ended else interval_s):
                    data = os.read(self._events_fd, _READ_BYTES)
                    yield from self._parse(data)
                    if not data:
                        selector.unregister(self._events_fd)
                        break
                elif ended:
                    break
                yield None
        while self._process.poll() is None:
            time.sleep(interval_s)
            yield None

    def _parse(self, data: bytes) -> Iterator[WorkerEvent]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            yield WorkerEvent(str(fields.pop("type")), fields)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Ask the worker to checkpoint and come back later."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the worker and all it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code (negative: signal)."""
        code = self._process.wait()
        # What the worker started may still hold its output open; it must not outlive it.
        self.kill()
        for reader in self._readers:
            reader.join()
        for descriptor in (self._events_fd, self._leash_fd):
            os.close(descriptor)
        return code


def _pump(stream: IO[bytes], name: str, on_output: Callable[[str, str], None]) -> None:
    with stream:
        for line in stream:
            on_output(name, line.decode("utf-8", "replace").rstrip("\r\n"))


def _write_info(info: TrialInfo) -> Path:
    path = Path(info.trial_dir) / f"run-{info.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The configuration may hold credentials: nobody else may read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(info), file, indent=2)
    return path
