"""Workers as processes of this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.errors import WorkerError
from detcore.launch._job import LocalJob, horovod_settings
from detcore.launch._lines import Line
from detcore.launch._workers import Workers
from detcore.types import TrialInfo

__all__ = ["LocalLauncher", "WorkerEvent", "WorkerGroup"]

_READ_BYTES = 1 << 16
# The workers of a trial class end together; one may hang while it takes its framework down.
_LINGER_S = 60.0
# How often a progress bar's state becomes a line.
_UPDATE_INTERVAL_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something a worker told of its progress: a ``type`` and its fields."""

    type: str
    fields: Mapping[str, Any]


class LocalLauncher:
    """Starts the workers of a trial as processes of this machine."""

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        slots: int = 1,
        keep_open: tuple[int, ...] = (),
        on_output: Callable[[str, str], None],
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
    ) -> WorkerGroup:
        """Start the workers; they end when this process does, however that happens.

        Args:
            info: Which trial they run.
            home: The folder of records and default checkpoints.
            slots: Number of workers; >= 1.
            keep_open: File descriptors that rank 0 inherits (the experiment's lock).
            on_output: Called from threads, one at a time, with ``("stdout" | "stderr", line)``;
                of several workers a line begins with ``[rank=N]``.
            disabled_plugins: Plugins that are switched off in the workers too.
            allowed_plugins: The only plugins that are on, or None for all.

        Raises:
            WorkerError: If a process cannot be started.
        """
        variables = {
            "DETCORE_HOME": str(home),
            "DETCORE_TRIAL_INFO": str(_write_info(info)),
            "DETCORE_DISABLE_PLUGINS": ",".join(sorted(disabled_plugins)),
            "PYTHONUNBUFFERED": "1",
        }
        if allowed_plugins is not None:
            variables["DETCORE_PLUGINS"] = ",".join(sorted(allowed_plugins))
        # Imported by a worker it would be there before it is run.
        from detcore.launch.worker import is_trial_class

        if slots > 1:
            variables.update(horovod_settings(info.config.get("optimizations") or {}))
        job = LocalJob(slots, horovod=slots > 1)
        linger_s = _LINGER_S if is_trial_class(info.config["entrypoint"]) else None
        workers = Workers(_LineSink(on_output, slots), linger_s=linger_s)
        events_read, events_write = os.pipe()
        leash_read, leash_write = os.pipe()
        variables["DETCORE_LEASH_FD"] = str(leash_read)
        try:
            for rank in range(slots):
                # Empty: not that of an outer runner either.
                mine = {**variables, "DETCORE_EVENTS_FD": "" if rank else str(events_write)}
                inherited = (leash_read,) if rank else (leash_read, events_write, *keep_open)
                workers.start(
                    [sys.executable, "-m", "detcore.launch.worker"],
                    job.environment(rank, mine),
                    cwd=info.model_dir,
                    keep_open=inherited,
                )
        except WorkerError:
            job.close()
            for descriptor in (events_read, leash_write):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (events_write, leash_read):
                os.close(descriptor)
        return WorkerGroup(workers, job, events_read, leash_write)


class WorkerGroup:
    """The running workers of a trial: the events of rank 0, their output, their end."""

    def __init__(self, workers: Workers, job: LocalJob, events_fd: int, leash_fd: int) -> None:
        self._workers = workers
        self._job = job
        self._events_fd = events_fd
        self._leash_fd = leash_fd
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The process id of rank 0."""
        return self._workers.pids[0]

    @property
    def pids(self) -> list[int]:
        """The process ids by rank."""
        return self._workers.pids

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, None while none has."""
        return self._workers.first_failed

    def events(self, interval_s: float = 0.1) -> Iterator[WorkerEvent | None]:
        """Yield what rank 0 tells until all have ended; None when nothing came for `interval_s`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events_fd, selectors.EVENT_READ)
            is_open = True
            while True:
                self._workers.poll()
                is_alive = self._workers.is_alive
                if is_open and selector.select(interval_s if is_alive else 0):
                    data = os.read(self._events_fd, _READ_BYTES)
                    yield from self._parse(data)
                    if not data:
                        selector.unregister(self._events_fd)
                        is_open = False
                elif not is_alive:
                    return
                elif not is_open:
                    time.sleep(interval_s)
                yield None

    def _parse(self, data: bytes) -> Iterator[WorkerEvent]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            fields = json.loads(line)
            yield WorkerEvent(str(fields.pop("type")), fields)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Ask the workers to checkpoint and come back later."""
        self._workers.signal(number)

    def kill(self) -> None:
        """End the workers and all they started, at once."""
        self._workers.kill()

    def close(self) -> int:
        """Wait for the end, release everything, and return the exit code.

        Returns:
            The code of the worker that failed first (negative: signal), else 75 if one wants to
            come back later, else 0.
        """
        code = self._workers.close()
        self._job.close()
        for descriptor in (self._events_fd, self._leash_fd):
            os.close(descriptor)
        return code


class _LineSink:
    """Hands lines on as text; of a progress bar the end, and a state now and then."""

    def __init__(self, on_output: Callable[[str, str], None], slots: int) -> None:
        self._on_output = on_output
        self._slots = slots
        self._shown_at: dict[tuple[int, str], float] = {}

    def __call__(self, rank: int, stream: str, line: Line) -> None:
        if line.is_final:
            self._shown_at.pop((rank, stream), None)
        elif not self._is_due(rank, stream):
            return
        prefix = f"[rank={rank}] " if self._slots > 1 else ""
        self._on_output(stream, prefix + line.text.decode("utf-8", "replace"))

    def _is_due(self, rank: int, stream: str) -> bool:
        now = time.monotonic()
        if now - self._shown_at.setdefault((rank, stream), now) < _UPDATE_INTERVAL_S:
            return False
        self._shown_at[rank, stream] = now
        return True


def _write_info(info: TrialInfo) -> Path:
    path = Path(info.trial_dir) / f"run-{info.run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The configuration may hold credentials: nobody else may read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(info), file, indent=2)
    return path
